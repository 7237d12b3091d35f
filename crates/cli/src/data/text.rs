//! Text, as a source.

use std::{rc::Rc, sync::Arc};

use burn::tensor::{Int, Tensor};
use stovepipe::train::{Data, Source};
use stovepipe_text::{NGram, Split, SplitSettings, Text, TextBatcher, TokenWindows, Tokenizer};

use super::DataSettings;
use crate::error::CliError;

/// Tokens that the yardstick sees before the one that it predicts, and that one.
const ORDER: usize = 5;

/// Text to train on and to test with.
pub struct TextSets {
    pub source: Rc<dyn Source<Tensor<2, Int>, Tensor<2, Int>>>,
    /// If something was.
    pub held_out: Option<HeldOut>,
}

/// What a trained model is held next to.
pub struct HeldOut {
    pub tokenizer: Tokenizer,
    split: Split,
}

impl TextSets {
    /// The text that the settings name, in windows of `length` tokens.
    pub fn load(settings: &DataSettings, length: usize, seed: u64) -> Result<Self, CliError> {
        let tokenizer = settings.tokenizer()?;
        let held_out = settings.held_out.unwrap_or(0.1);
        let split = Split::new(
            settings.tokens(&tokenizer)?,
            &SplitSettings { length, held_out },
        )?;
        let data = Data::augmented(
            split.training.clone(),
            split.held_out.clone(),
            move |epoch| TextBatcher::shifted(seed, epoch),
            TextBatcher::default(),
        );
        Ok(Self {
            source: Rc::new(data),
            held_out: Some(HeldOut { tokenizer, split }),
        })
    }

    /// The text that the settings name, all of it to test with.
    pub fn whole(settings: &DataSettings, length: usize) -> Result<Self, CliError> {
        let tokens = settings.tokens(&settings.tokenizer()?)?;
        let windows = TokenWindows::new(tokens, length)?;
        let data = Data::new(
            windows.clone(),
            windows.overlapping(),
            TextBatcher::default(),
        );
        Ok(Self {
            source: Rc::new(data),
            held_out: None,
        })
    }
}

impl HeldOut {
    /// The perplexity on the held-out tokens that counting gets to: an interpolated 5-gram's.
    pub fn yardstick(&self) -> Result<f64, CliError> {
        let counted = NGram::fit(
            self.split.training.tokens(),
            self.tokenizer.vocabulary(),
            ORDER,
        )?;
        Ok(counted.perplexity(self.split.held_out.tokens()))
    }

    /// The first tokens that are held out, to begin a sample of generated text with.
    pub fn prompt(&self, tokens: usize) -> &[u32] {
        let held_out = self.split.held_out.tokens();
        &held_out[..tokens.min(held_out.len())]
    }
}

impl DataSettings {
    /// The tokens of the text.
    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        let text = match &self.text {
            Some(path) => Text::read(path)?,
            None => Text::embedded()?,
        };
        Ok(text.encode(tokenizer)?)
    }

    /// What makes tokens of a text.
    pub fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        Ok(match &self.tokenizer {
            Some(path) => Tokenizer::read(path)?,
            None => Tokenizer::bytes(),
        })
    }
}
