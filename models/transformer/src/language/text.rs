//! Generates text.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{
    SeedableRng,
    distr::{Distribution, weighted::WeightedIndex},
};
use rand_chacha::ChaCha8Rng;
use stovepipe_pipeline::{Layer, Pipeline, StepError, TokenLogits};

use super::layer::LmLayer;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it: below 1, likely tokens become likelier. At 0 the likeliest is chosen.
    pub temperature: f64,
    /// The number of likeliest tokens to sample from; all if `None`.
    pub top_k: Option<usize>,
    /// Samples from the fewest likeliest tokens that have this probability together (Holtzman et al., "The
    /// Curious Case of Neural Text Degeneration", 2020); from all if `None`.
    pub top_p: Option<f64>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// Temperature 1, all tokens, seed 0.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            seed: 0,
        }
    }
}

/// Why a text cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// The prompt has no tokens.
    #[error("the prompt is empty: give it at least one token")]
    EmptyPrompt,
    /// A token is not in the vocabulary.
    #[error("the prompt has token {token} at place {place}, but the model knows only 0 to {most}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Its index in the prompt.
        place: usize,
        /// The last token of the vocabulary.
        most: usize,
    },
    /// The temperature is negative, NaN or infinite.
    #[error("the temperature must be finite and at least 0, not {0:?}")]
    Temperature(f64),
    /// No token would remain.
    #[error("top-k must leave at least one token")]
    TopK,
    /// The probability is 0, more than 1 or NaN.
    #[error("top-p must be more than 0 and at most 1, not {0:?}")]
    TopP(f64),
    /// The first layer is another one.
    #[error("the pipeline does not begin with the embedding of a language model")]
    NoEmbedding,
    /// The logits are NaN or infinite.
    #[error("after {0} tokens, the model's logits are not finite")]
    NotFinite(usize),
    /// The pipeline failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Continues a text by `count` tokens, and returns the new ones. Each is sampled from the model's
/// prediction for the last [`length`](super::LmConfig::length) tokens.
///
/// The same seed gives the same text. Keys and values are not cached: each token runs the model on the
/// whole window.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_transformer::{LmConfig, Sampling, continue_text};
///
/// let device = Device::flex();
/// let layers = LmConfig::new(30, 8, 2, 16, 2).init(&device)?;
/// let pipeline = Pipeline::builder(layers).devices([device.clone(), device]).build()?;
/// let sampling = Sampling { temperature: 0.8, top_k: Some(5), seed: 7, ..Sampling::default() };
/// let text = continue_text(&pipeline, &[1, 2, 3], 10, &sampling)?;
/// assert_eq!(text.len(), 10);
/// assert_eq!(text, continue_text(&pipeline, &[1, 2, 3], 10, &sampling)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`GenerationError`] if the prompt is empty or has an unknown token, the temperature or top-k is not valid,
/// or the model fails.
pub fn continue_text(
    pipeline: &Pipeline<LmLayer>,
    prompt: &[u32],
    count: usize,
    sampling: &Sampling,
) -> Result<Vec<u32>, GenerationError> {
    continue_text_with(pipeline, prompt, count, sampling, |_| true)
}

/// Like [`continue_text`], calling `each` with every new token as soon as it is chosen. If it returns
/// `false`, the text ends.
///
/// # Errors
///
/// Those of [`continue_text`].
pub fn continue_text_with(
    pipeline: &Pipeline<LmLayer>,
    prompt: &[u32],
    count: usize,
    sampling: &Sampling,
    each: impl FnMut(u32) -> bool,
) -> Result<Vec<u32>, GenerationError> {
    let Some(LmLayer::Embed(embedding)) = pipeline.layers().first() else {
        return Err(GenerationError::NoEmbedding);
    };
    let limits = [embedding.length(), embedding.vocabulary()];
    continue_tokens(pipeline, limits, prompt, count, sampling, each)
}

/// Like [`continue_text_with`], for any model from tokens to logits, which sees at most `length` tokens of
/// a `vocabulary`.
///
/// # Errors
///
/// Those of [`continue_text`].
pub fn continue_tokens<L>(
    pipeline: &Pipeline<L>,
    [length, vocabulary]: [usize; 2],
    prompt: &[u32],
    count: usize,
    sampling: &Sampling,
    mut each: impl FnMut(u32) -> bool,
) -> Result<Vec<u32>, GenerationError>
where
    L: Layer<Input = Tensor<2, Int>, Output: TokenLogits, Side = ()>,
{
    check(prompt, vocabulary, sampling)?;
    let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let window = &text[text.len().saturating_sub(length)..];
        let logits = last_logits(pipeline, window)?;
        let next = sampling.choose(&logits, &mut rng);
        let next = next.ok_or(GenerationError::NotFinite(text.len()))?;
        text.push(next);
        if !each(next) {
            break;
        }
    }
    Ok(text.split_off(prompt.len()))
}

fn check(prompt: &[u32], vocabulary: usize, sampling: &Sampling) -> Result<(), GenerationError> {
    let mut tokens = prompt.iter();
    match tokens.position(|&token| token as usize >= vocabulary) {
        _ if prompt.is_empty() => Err(GenerationError::EmptyPrompt),
        Some(place) => Err(GenerationError::UnknownToken {
            token: prompt[place],
            place,
            most: vocabulary - 1,
        }),
        None if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) => {
            Err(GenerationError::Temperature(sampling.temperature))
        }
        None if sampling.top_k == Some(0) => Err(GenerationError::TopK),
        None => match sampling
            .top_p
            .filter(|share| !(*share > 0.0 && *share <= 1.0))
        {
            Some(share) => Err(GenerationError::TopP(share)),
            None => Ok(()),
        },
    }
}

/// The logits of the token after a window.
fn last_logits<L>(pipeline: &Pipeline<L>, window: &[u32]) -> Result<Vec<f32>, StepError>
where
    L: Layer<Input = Tensor<2, Int>, Output: TokenLogits, Side = ()>,
{
    let tokens: Vec<_> = window.iter().map(|&token| i64::from(token)).collect();
    let tokens = TensorData::new(tokens, [1, window.len()]);
    let logits = pipeline.infer(Tensor::from_data(tokens, &Device::flex()))?;
    let last = logits.logits().narrow(1, window.len() - 1, 1).into_data();
    Ok(last.try_into_vec_as::<f32>().unwrap_or_default())
}

impl Sampling {
    /// `None` if a logit is not finite.
    fn choose(&self, logits: &[f32], rng: &mut ChaCha8Rng) -> Option<u32> {
        if logits.is_empty() || !logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // A stable sort: the first of equal ones wins.
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let best = logits[order[0]];
        if self.temperature == 0.0 {
            return u32::try_from(order[0]).ok();
        }
        order.truncate(self.top_k.unwrap_or(order.len()));
        let weight = |&token: &usize| (f64::from(logits[token] - best) / self.temperature).exp();
        let mut weights: Vec<f64> = order.iter().map(weight).collect();
        if let Some(share) = self.top_p {
            let most = share * weights.iter().sum::<f64>();
            let sums = weights.iter().scan(0.0, |sum, weight| {
                let before = *sum;
                *sum += weight;
                Some(before)
            });
            let count = sums.take_while(|before| *before < most).count();
            weights.truncate(count.max(1));
        }
        let weights = WeightedIndex::new(weights).ok()?;
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
    fn tokens_are_sampled_as_often_as_they_are_likely() {
        let logits = [0.0, 2f32.ln(), 1f32, f32::MIN];
        let sampling = Sampling::default();
        let total = 1.0 + 2.0 + 1f64.exp();
        let found = counts(sampling, &logits);
        for (found, likely) in found.iter().zip([1.0, 2.0, 1f64.exp(), 0.0]) {
            let expected = 10_000.0 * likely / total;
            let apart = (f64::from(*found) - expected).abs();
            assert!(apart < 250.0, "{found}: {expected}");
        }
        // Half the temperature squares the odds.
        let colder = Sampling {
            temperature: 0.5,
            ..sampling
        };
        let found = counts(colder, &[0.0, 2f32.ln()]);
        assert!((f64::from(found[1]) - 8000.0).abs() < 250.0, "{found:?}");
    }

    #[test]
    fn only_the_likeliest_tokens_are_sampled() {
        let logits = [0.0, 3.0, 1.0, 2.0];
        let mut sampling = Sampling {
            top_k: Some(2),
            ..Sampling::default()
        };
        let found = counts(sampling, &logits);
        assert!(found[0] == 0 && found[2] == 0 && found[3] > 0);
        // 0.644, 0.237, 0.087 and 0.032 of them all.
        for (share, kept) in [(0.5, 1), (0.65, 2), (0.88, 2), (0.9, 3), (1.0, 4)] {
            (sampling.top_k, sampling.top_p) = (None, Some(share));
            let found = counts(sampling, &logits);
            assert_eq!(
                found.iter().filter(|count| **count > 0).count(),
                kept,
                "{share}"
            );
        }
        (sampling.top_p, sampling.temperature) = (None, 0.0);
        assert_eq!(counts(sampling, &logits), [0, 10_000, 0, 0]);
    }
}
