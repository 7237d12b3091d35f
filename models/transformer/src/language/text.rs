//! Lets a model write.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{
    SeedableRng,
    distr::{Distribution, weighted::WeightedIndex},
};
use rand_chacha::ChaCha8Rng;
use stovepipe_pipeline::{Pipeline, StepError};

use super::layer::LmLayer;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by: below 1 likely tokens become likelier, and at 0 the likeliest is taken.
    pub temperature: f64,
    /// Draws from so many of the likeliest tokens only; from all if `None`.
    pub top_k: Option<usize>,
    /// The seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// As the model says: temperature 1, all tokens, seed 0.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            seed: 0,
        }
    }
}

/// A text cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// There is nothing to continue.
    #[error("the prompt is empty: give it at least one token")]
    EmptyPrompt,
    /// A token that the model does not know.
    #[error("the prompt has token {token} at place {place}, but the model knows only 0 to {most}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Where it stands, from 0.
        place: usize,
        /// The last token that the model knows.
        most: usize,
    },
    /// Nothing can be drawn.
    #[error("the temperature must be finite and at least 0, not {0}")]
    Temperature(f64),
    /// Nothing would be left to draw from.
    #[error("top-k must leave at least one token")]
    TopK,
    /// The model begins with another layer.
    #[error("the pipeline does not begin with the embedding of a language model")]
    NoEmbedding,
    /// The model's logits are not numbers.
    #[error("after {0} tokens, the model's logits are not finite")]
    NotFinite(usize),
    /// The model could not be run.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Continues a text by `count` tokens, each drawn from what the model says of the last
/// [`length`](super::LmConfig::length) tokens. Returns the new ones.
///
/// The same seed gives the same text. The model is run on the whole window for each token: keys and
/// values are not kept.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_transformer::{LmConfig, Sampling, continue_text};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::flex();
/// let layers = LmConfig::new(30, 8, 2, 16, 2).init(&device)?;
/// let pipeline = Pipeline::builder(layers).devices([device.clone(), device]).build()?;
/// let sampling = Sampling { temperature: 0.8, top_k: Some(5), seed: 7 };
/// let text = continue_text(&pipeline, &[1, 2, 3], 10, &sampling)?;
/// assert_eq!(text.len(), 10);
/// assert_eq!(text, continue_text(&pipeline, &[1, 2, 3], 10, &sampling)?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`TextError`] if the prompt is empty or has a token that the model does not know, the temperature or
/// top-k make no sense, or the model fails.
pub fn continue_text(
    pipeline: &Pipeline<LmLayer>,
    prompt: &[u32],
    count: usize,
    sampling: &Sampling,
) -> Result<Vec<u32>, TextError> {
    let Some(LmLayer::Embed(embedding)) = pipeline.layers().first() else {
        return Err(TextError::NoEmbedding);
    };
    let (length, vocabulary) = (embedding.length(), embedding.vocabulary());
    check(prompt, vocabulary, sampling)?;
    let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let window = &text[text.len().saturating_sub(length)..];
        let logits = last_logits(pipeline, window)?;
        let next = sampling.choose(&logits, &mut rng);
        text.push(next.ok_or(TextError::NotFinite(text.len()))?);
    }
    Ok(text.split_off(prompt.len()))
}

fn check(prompt: &[u32], vocabulary: usize, sampling: &Sampling) -> Result<(), TextError> {
    let unknown = prompt
        .iter()
        .position(|&token| token as usize >= vocabulary);
    match unknown {
        _ if prompt.is_empty() => Err(TextError::EmptyPrompt),
        Some(place) => Err(TextError::UnknownToken {
            token: prompt[place],
            place,
            most: vocabulary - 1,
        }),
        None if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) => {
            Err(TextError::Temperature(sampling.temperature))
        }
        None if sampling.top_k == Some(0) => Err(TextError::TopK),
        None => Ok(()),
    }
}

/// What the model says comes after a window.
fn last_logits(pipeline: &Pipeline<LmLayer>, window: &[u32]) -> Result<Vec<f32>, StepError> {
    let numbers: Vec<_> = window.iter().map(|&token| i64::from(token)).collect();
    let length = numbers.len();
    let numbers = TensorData::new(numbers, [1, length]);
    let tokens = Tensor::<2, Int>::from_data(numbers, &Device::flex());
    let logits = pipeline.infer(tokens)?;
    let last = logits.narrow(1, length - 1, 1).into_data();
    Ok(last.try_into_vec_as::<f32>().unwrap_or_default())
}

impl Sampling {
    /// `None` if a logit is not finite.
    fn choose(&self, logits: &[f32], rng: &mut ChaCha8Rng) -> Option<u32> {
        if logits.is_empty() || !logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // Stable: of equals, the first.
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let best = logits[order[0]];
        if self.temperature == 0.0 {
            return u32::try_from(order[0]).ok();
        }
        order.truncate(self.top_k.unwrap_or(order.len()));
        let weight = |&token: &usize| (f64::from(logits[token] - best) / self.temperature).exp();
        let weights = WeightedIndex::new(order.iter().map(weight)).ok()?;
        u32::try_from(order[weights.sample(rng)]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        let mut counts = vec![0; logits.len()];
        for _ in 0..10_000 {
            counts[sampling.choose(logits, &mut rng).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.0, 2f32.ln(), 1f32, f32::MIN];
        let sampling = Sampling::default();
        let total = 1.0 + 2.0 + 1f64.exp();
        let found = counts(sampling, &logits);
        for (found, likely) in found.iter().zip([1.0, 2.0, 1f64.exp(), 0.0]) {
            let expected = 10_000.0 * likely / total;
            assert!(
                (f64::from(*found) - expected).abs() < 250.0,
                "{found}: {expected}"
            );
        }
        // At half the temperature, squares of the odds.
        let colder = Sampling {
            temperature: 0.5,
            ..sampling
        };
        let found = counts(colder, &[0.0, 2f32.ln()]);
        assert!((f64::from(found[1]) - 8000.0).abs() < 250.0, "{found:?}");
    }

    #[test]
    fn few_or_one_of_the_likeliest() {
        let logits = [0.0, 3.0, 1.0, 2.0];
        let top_k = Some(2);
        let found = counts(
            Sampling {
                top_k,
                ..Sampling::default()
            },
            &logits,
        );
        assert!(found[0] == 0 && found[2] == 0 && found[3] > 0);
        let temperature = 0.0;
        let found = counts(
            Sampling {
                temperature,
                ..Sampling::default()
            },
            &logits,
        );
        assert_eq!(found, [0, 10_000, 0, 0]);
    }
}
