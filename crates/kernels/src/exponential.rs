//! Scalar functions that the compiler can vectorise, unlike those in the standard library.

use std::f32::consts::LOG2_E;

/// e^x to within 2 ulp, for x from −87 to 88; x is clamped to this range.
///
/// x = n ln 2 + r with |r| ≤ ln 2 / 2, and e^x = 2ⁿ e^r, the latter by the polynomial in Moshier's
/// Cephes library (`expf`).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LEAST: f32 = -87.0;
    const MOST: f32 = 88.0;
    // Adding this leaves the nearest whole number in the last bits.
    const WHOLE: f32 = 12_582_912.0; // 1.5 · 2²³
    // ln 2 in two parts; the first has few digits, so that its product with n is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // NaN fails these comparisons, so it stays NaN.
    let x = if x < LEAST { LEAST } else { x };
    let x = if x > MOST { MOST } else { x };
    let whole = x * LOG2_E + WHOLE;
    let n = whole - WHOLE;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let mut sum = 1.987_569_1e-4;
    for factor in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        sum = sum * r + factor;
    }
    let power = f32::from_bits(whole.to_bits().wrapping_add(127) << 23);
    (sum * (r * r) + r + 1.0) * power
}

/// Φ(x), the normal distribution's cumulative function, to within 2.5e-7, and e^(−x²/2), which is √2π
/// times the slope of Φ.
///
/// Φ(−|x|) e^(x²/2) is a polynomial in t = 1 / (1 + 0.3 |x|), as in Hastings, "Approximations for
/// Digital Computers" (1955), with coefficients for the least relative error up to |x| = 14.
#[inline(always)]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    const RATIO: [f32; 8] = [
        0.035_675_607,
        -0.157_206_37,
        0.206_358_82,
        -0.053_688_187,
        0.128_563_84,
        0.099_912_88,
        0.120_754_04,
        0.119_629_29,
    ];
    let away = x.abs();
    let bell = exp(-0.5 * away * away);
    let t = 1.0 / (1.0 + 0.3 * away);
    let ratio = RATIO.iter().fold(0.0, |sum, factor| sum * t + factor) * t;
    let tail = bell * ratio;
    (if x > 0.0 { 1.0 - tail } else { tail }, bell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_equals_that_of_the_standard_library() {
        for step in -87_000..=88_000 {
            let x = step as f32 / 1000.0;
            let expected = f64::from(x).exp();
            let apart = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(apart < 2.5e-7, "{x}: {apart}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    /// Φ by its series, Φ(x) = ½ + φ(x) Σ x^(2k+1) / (1·3·5…(2k+1)).
    #[test]
    fn normal_equals_its_series() {
        for step in -8000..=8000 {
            let x = f64::from(step) / 1000.0;
            let bell = (-0.5 * x * x).exp();
            let (mut term, mut sum) = (x, x);
            for k in 1..200 {
                term *= x * x / f64::from(2 * k + 1);
                sum += term;
            }
            let expected = 0.5 + bell * sum / (2.0 * std::f64::consts::PI).sqrt();
            let (found, slope) = normal(x as f32);
            assert!((f64::from(found) - expected).abs() < 2.5e-7, "{x}: {found}");
            assert!((f64::from(slope) - bell).abs() < 2e-7, "{x}: {slope}");
        }
    }

    /// Where 1 − Φ would have no digits left.
    #[test]
    fn the_relative_error_of_the_tail_is_small() {
        for (x, expected) in [
            (-3.0, 1.349_898_031_630_094_5e-3),
            (-6.0, 9.865_876_450_376_98e-10),
            (-9.0, 1.128_588_405_953_840_6e-19),
        ] {
            let apart = (f64::from(normal(x).0) - expected).abs() / expected;
            assert!(apart < 5e-6, "{x}: {apart}");
        }
        assert!(normal(f32::NAN).0.is_nan());
        assert_eq!((normal(20.0).0, normal(f32::INFINITY).0), (1.0, 1.0));
    }
}
