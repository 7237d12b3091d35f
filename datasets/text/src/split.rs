use std::sync::Arc;

use crate::{TextError, Windows};

/// How tokens are cut into windows to train on and windows to test with.
///
/// # Example
///
/// ```
/// use stovepipe_text::SplitSettings;
///
/// let usual = SplitSettings::default();
/// assert_eq!((usual.length, usual.held_out), (128, 0.1));
/// let longer = SplitSettings { length: 256, ..usual };
/// # let _ = longer;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitSettings {
    /// Input tokens of a window, at least 1.
    pub length: usize,
    /// The share of tokens, the last ones, that is held out to test with: between 0 and 1.
    pub held_out: f64,
}

impl Default for SplitSettings {
    fn default() -> Self {
        Self {
            length: 128,
            held_out: 0.1,
        }
    }
}

/// Windows to train on, and windows of held-out tokens to test with.
#[derive(Clone, Debug)]
pub struct Split {
    /// Of the first tokens, one window after the other.
    pub training: Windows,
    /// Of the last tokens, [overlapping](Windows::overlapping).
    pub held_out: Windows,
}

impl Split {
    /// Cuts tokens in two, always at the same place, and each part into windows. Both share the tokens.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range, or a part has not one whole window.
    ///
    /// # Example
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_text::{Split, SplitSettings, Text, Tokenizer};
    ///
    /// let tokens = Text::embedded()?.encode(&Tokenizer::bytes())?;
    /// let split = Split::new(tokens.clone(), &SplitSettings::default())?;
    /// let (training, held_out) = (split.training.tokens().len(), split.held_out.tokens().len());
    /// assert_eq!(training + held_out, tokens.len());
    /// assert_eq!(held_out, (tokens.len() + 5) / 10);
    /// assert_eq!(split.training.len(), (training - 1).div_ceil(128));
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn new(tokens: impl Into<Arc<[u32]>>, settings: &SplitSettings) -> Result<Self, TextError> {
        let SplitSettings { length, held_out } = *settings;
        if !(held_out > 0.0 && held_out < 1.0) {
            return Err(TextError::Setting {
                setting: "held-out",
                value: held_out.to_string(),
                range: "greater than 0 and less than 1",
            });
        }
        let tokens = tokens.into();
        let all = tokens.len();
        let cut = all - (all as f64 * held_out).round() as usize;
        let training = Windows::of_part(tokens.clone(), 0..cut, length, "training part")?;
        let held_out = Windows::of_part(tokens, cut..all, length, "held-out part")?;
        Ok(Self {
            training,
            held_out: held_out.overlapping(),
        })
    }
}
