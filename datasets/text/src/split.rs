use std::sync::Arc;

use crate::{TextError, TokenWindows};

/// How to split tokens into training windows and test windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitSettings {
    /// Input tokens of a window, at least 1.
    pub length: usize,
    /// The share of the tokens held out for testing, between 0 and 1. The last tokens are held out.
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

/// Training windows, and test windows of held-out tokens.
#[derive(Clone, Debug)]
pub struct Split {
    /// Windows of the first tokens.
    pub training: TokenWindows,
    /// [Overlapping](TokenWindows::overlapping) windows of the last tokens.
    pub held_out: TokenWindows,
}

impl Split {
    /// Splits tokens. The windows share them.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range, or a part is shorter than a window.
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_text::{Split, SplitSettings, Text, Tokenizer};
    ///
    /// let tokens = Text::embedded()?.encode(&Tokenizer::bytes())?;
    /// let settings = SplitSettings::default();
    /// assert_eq!((settings.length, settings.held_out), (128, 0.1));
    /// let split = Split::new(tokens.clone(), &settings)?;
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
                value: format!("{held_out:?}").trim_end_matches(".0").to_owned(),
                range: "greater than 0 and less than 1",
            });
        }
        let tokens = tokens.into();
        let all = tokens.len();
        let cut = all - (all as f64 * held_out).round() as usize;
        let training = TokenWindows::of_part(tokens.clone(), 0..cut, length, "training part")?;
        let held_out = TokenWindows::of_part(tokens, cut..all, length, "held-out part")?;
        Ok(Self {
            training,
            held_out: held_out.overlapping(),
        })
    }
}
