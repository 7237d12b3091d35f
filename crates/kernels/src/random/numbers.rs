//! Uniform and normal numbers.

use burn::tensor::{Device, FloatDType, Int, Tensor};

use super::{
    draw::{Draw, Kind},
    threefry::{self, Key},
};

impl Draw {
    /// Numbers from 0 to 1, `[samples, each]`.
    #[must_use]
    pub fn uniform(&self, device: &Device) -> Tensor<2> {
        self.numbers(&Uniform, device)
    }

    /// Normal numbers with mean 0 and variance 1, `[samples, each]`.
    #[must_use]
    pub fn normal(&self, device: &Device) -> Tensor<2> {
        self.numbers(&Normal, device)
    }
}

/// 24 bits are all that an `f32` below 1 can have.
const STEP: f32 = 1.0 / (1 << 24) as f32;

struct Uniform;

impl Kind for Uniform {
    fn fill(&self, key: Key, first: u32, numbers: &mut [f32]) {
        let number = |word: u32| (word >> 8) as f32 * STEP;
        threefry::fill(key, first, numbers, |words| words.map(number));
    }

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2] {
        words.map(|words| {
            let bits = words.bitwise_right_shift_scalar(8);
            bits.float().cast(FloatDType::F32).mul_scalar(STEP)
        })
    }
}

/// The quantiles of uniform numbers, by Wichura's AS 241 ("The Percentage Points of the Normal Distribution",
/// 1988), to about 7 digits. Little depends on how a device computes logarithms.
struct Normal;

/// The middle: this far from 1/2, a quotient of polynomials in 0.425² − (p − 1/2)².
const MIDDLE: f32 = 0.425;
const MIDDLE_SQUARED: f32 = 0.180_625;
const MIDDLE_ABOVE: [f32; 4] = [59.109_375, 159.291_13, 50.434_27, 3.387_132_7];
const MIDDLE_BELOW: [f32; 4] = [67.187_56, 78.757_76, 17.895_17, 1.0];
/// The tails: one in √(−ln p) − 1.6. With 23 bits, p is large enough for these alone.
const TAIL: f32 = 1.6;
const TAIL_ABOVE: [f32; 4] = [0.170_238_21, 1.306_728_5, 2.756_815_4, 1.423_437_3];
const TAIL_BELOW: [f32; 3] = [0.120_211_33, 0.737_001_64, 1.0];

#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let [first, rest @ ..] = &coefficients[..] else {
        return 0.0;
    };
    rest.iter().fold(*first, |sum, next| sum * x + next)
}

fn polynomial_of<const N: usize>(x: &Tensor<2>, coefficients: [f32; N]) -> Tensor<2> {
    let [first, rest @ ..] = &coefficients[..] else {
        return x.zeros_like();
    };
    let first = x.zeros_like().add_scalar(*first);
    let add = |sum: Tensor<2>, next: &f32| (sum * x.clone()).add_scalar(*next);
    rest.iter().fold(first, add)
}

/// (word + 1/2) · 2⁻²³ − 1/2 for 23 bits: exact, and never ±1/2.
const HALF_STEP: f32 = 1.0 / (1 << 24) as f32;
const TWICE: f32 = 2.0 * STEP;

#[inline(always)]
fn quantile(word: u32) -> f32 {
    let from_middle = (word >> 9) as f32 * TWICE + (HALF_STEP - 0.5);
    let squared = MIDDLE_SQUARED - from_middle * from_middle;
    let middle =
        from_middle * polynomial(squared, MIDDLE_ABOVE) / polynomial(squared, MIDDLE_BELOW);
    let tail = (-(0.5 - from_middle.abs()).ln()).sqrt() - TAIL;
    let tail = polynomial(tail, TAIL_ABOVE) / polynomial(tail, TAIL_BELOW);
    if from_middle.abs() <= MIDDLE {
        middle
    } else {
        tail.copysign(from_middle)
    }
}

impl Kind for Normal {
    fn fill(&self, key: Key, first: u32, numbers: &mut [f32]) {
        threefry::fill(key, first, numbers, |words| words.map(quantile));
    }

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2] {
        words.map(|words| {
            let bits = words.bitwise_right_shift_scalar(9);
            let bits = bits.float().cast(FloatDType::F32);
            let from_middle = bits.mul_scalar(TWICE).add_scalar(HALF_STEP - 0.5);
            let squared = from_middle
                .clone()
                .square()
                .neg()
                .add_scalar(MIDDLE_SQUARED);
            let middle = from_middle.clone() * polynomial_of(&squared, MIDDLE_ABOVE)
                / polynomial_of(&squared, MIDDLE_BELOW);
            let distance = from_middle.clone().abs();
            let tail = distance.clone().neg().add_scalar(0.5).log().neg().sqrt();
            let tail = tail.sub_scalar(TAIL);
            let tail = polynomial_of(&tail, TAIL_ABOVE) / polynomial_of(&tail, TAIL_BELOW);
            let tail = tail * from_middle.sign();
            middle.mask_where(distance.greater_elem(MIDDLE), tail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1/4, 0.001 and 0.975 to 23 bits; the first two are in Wichura's paper.
    #[test]
    fn normal_numbers_are_quantiles() {
        for (p, expected) in [
            (0.25, -0.674_489_75),
            (0.001, -3.090_232_3),
            (0.975, 1.959_964),
            (0.5 + 0.43, 1.475_791),
            (0.5f64.powi(24), -5.294_704),
        ] {
            let word = ((p * 2f64.powi(23) - 0.5).round() as u32) << 9;
            let found = f64::from(quantile(word));
            assert!(
                (found - expected).abs() < 2e-4 * f64::abs(expected),
                "{p}: {found}"
            );
            let mirrored = f64::from(quantile(!word));
            assert!(
                (mirrored + found).abs() < 1e-6,
                "{p}: {found} and {mirrored}"
            );
        }
    }
}
