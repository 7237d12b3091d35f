use rand::Rng;
use rand_distr::{Beta, Distribution};

/// How a batch is mixed: each sample is `lambda` of itself and the rest of the one before it, the first of the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mix {
    pub lambda: f32,
}

/// Mixes the samples of a batch, each of `length` numbers, in place. Nothing is mixed where α is 0.
pub(crate) fn mix(
    alpha: f64,
    samples: &mut [f32],
    length: usize,
    draws: &mut impl Rng,
) -> Option<Mix> {
    // There is such a distribution for any α above 0, which settings are checked for.
    let beta = (alpha > 0.0)
        .then(|| Beta::new(alpha, alpha).ok())
        .flatten()?;
    let lambda = beta.sample(draws) as f32;
    let last = samples.chunks_exact(length).next_back()?.to_vec();
    let mut rest = samples;
    // From the last to the first, so that each is mixed with what was there before.
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
        let mut draws = ChaCha8Rng::seed_from_u64(4);
        let before = [1.0, 2.0, 30.0, 40.0, 500.0, 600.0];
        let mut samples = before;
        let Mix { lambda } = mix(0.2, &mut samples, 2, &mut draws).unwrap();
        assert!((0.0..=1.0).contains(&lambda));
        for (place, value) in samples.into_iter().enumerate() {
            let expected = lambda * before[place] + (1.0 - lambda) * before[(place + 4) % 6];
            assert_eq!(value, expected);
        }
    }

    #[test]
    fn one_sample_stays_itself_and_none_is_nothing() {
        let mut draws = ChaCha8Rng::seed_from_u64(4);
        let mut sample = [1.5, -2.0];
        mix(1.0, &mut sample, 2, &mut draws).unwrap();
        assert!((sample[0] - 1.5_f32).abs() < 1e-6 && (sample[1] + 2.0_f32).abs() < 1e-6);
        assert_eq!(mix(1.0, &mut [], 2, &mut draws), None);
        assert_eq!(mix(0.0, &mut sample, 2, &mut draws), None);
    }

    /// Beta(α, α) has the mean ½ and the variance 1 / (4 (2α + 1)).
    #[test]
    fn shares_are_those_of_the_distribution() {
        let mut draws = ChaCha8Rng::seed_from_u64(5);
        for alpha in [0.2, 1.0] {
            let times = 20_000;
            let mut lambda = || f64::from(mix(alpha, &mut [0.0], 1, &mut draws).unwrap().lambda);
            let found: Vec<f64> = (0..times).map(|_| lambda()).collect();
            let mean = found.iter().sum::<f64>() / f64::from(times);
            let variance = found.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(times);
            assert!((mean - 0.5).abs() < 0.01, "{mean}");
            assert!(
                (variance * 4.0 * (2.0 * alpha + 1.0) - 1.0).abs() < 0.03,
                "{variance}"
            );
        }
    }
}
