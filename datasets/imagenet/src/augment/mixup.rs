use rand::Rng;
use rand_distr::{Beta, Distribution};

/// The mixing of a batch: each sample has the share `lambda`, and the one before it the rest. The last is before the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mix {
    pub lambda: f32,
}

/// Mixes the samples of a batch in place, each of `length` numbers, unless `alpha` is 0.
pub(crate) fn mix(
    alpha: f64,
    samples: &mut [f32],
    length: usize,
    rng: &mut impl Rng,
) -> Option<Mix> {
    if alpha <= 0.0 {
        return None;
    }
    // Settings are checked, so the distribution exists.
    let lambda = Beta::new(alpha, alpha).ok()?.sample(rng) as f32;
    let last = samples.chunks_exact(length).next_back()?.to_vec();
    let mut rest = samples;
    // From the last to the first, so that each is mixed with the original before it.
    while rest.len() > length {
        let (before, sample) = rest.split_at_mut(rest.len() - length);
        blend(sample, &before[before.len() - length..], lambda);
        rest = before;
    }
    blend(rest, &last, lambda);
    Some(Mix { lambda })
}

fn blend(sample: &mut [f32], other: &[f32], lambda: f32) {
    for (value, other) in sample.iter_mut().zip(other) {
        *value = lambda * *value + (1.0 - lambda) * other;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn each_is_mixed_with_the_one_before() {
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let before = [1.0, 2.0, 30.0, 40.0, 500.0, 600.0];
        let mut samples = before;
        let Mix { lambda } = mix(0.2, &mut samples, 2, &mut rng).unwrap();
        assert!((0.0..=1.0).contains(&lambda));
        for (place, value) in samples.into_iter().enumerate() {
            let expected = lambda * before[place] + (1.0 - lambda) * before[(place + 4) % 6];
            assert_eq!(value, expected);
        }
    }

    #[test]
    fn a_single_sample_is_unchanged() {
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let mut sample = [1.5, -2.0];
        mix(1.0, &mut sample, 2, &mut rng).unwrap();
        assert!((sample[0] - 1.5_f32).abs() < 1e-6 && (sample[1] + 2.0_f32).abs() < 1e-6);
        assert_eq!(mix(1.0, &mut [], 2, &mut rng), None);
        assert_eq!(mix(0.0, &mut sample, 2, &mut rng), None);
    }

    /// Beta(α, α) has the mean ½ and the variance 1 / (4 (2α + 1)).
    #[test]
    fn lambda_has_the_moments_of_the_distribution() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for alpha in [0.2, 1.0] {
            let times = 20_000;
            let mut lambda = || f64::from(mix(alpha, &mut [0.0], 1, &mut rng).unwrap().lambda);
            let found: Vec<f64> = (0..times).map(|_| lambda()).collect();
            let mean = found.iter().sum::<f64>() / f64::from(times);
            let variance = found.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(times);
            assert!((mean - 0.5).abs() < 0.01, "{mean}");
            let relative = variance * 4.0 * (2.0 * alpha + 1.0);
            assert!((relative - 1.0).abs() < 0.03, "{variance}");
        }
    }
}
