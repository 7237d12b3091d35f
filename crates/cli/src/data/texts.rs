//! Texts, as one kind of source, and a yardstick for models of them.

use std::{path::Path, rc::Rc, sync::Arc};

use burn::tensor::{Int, Tensor};
use stovepipe::train::{Data, Source};
use stovepipe_text::{NGram, Split, SplitSettings, Text, TextBatcher, TokenWindows, Tokenizer};

use crate::error::CliError;

/// Tokens that the yardstick sees before the one that it predicts, and that one.
const ORDER: usize = 5;

/// A data set of text.
pub trait TextData {
    fn text(&self) -> Result<Text, CliError>;

    /// A tokenizer.json; without one, each byte is a token.
    fn tokenizer_file(&self) -> Option<&Path>;

    /// The share of tokens that is held out.
    fn held_out(&self) -> f64;

    fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        Ok(match self.tokenizer_file() {
            Some(path) => Tokenizer::read(path)?,
            None => Tokenizer::bytes(),
        })
    }

    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        Ok(self.text()?.encode(tokenizer)?)
    }

    /// The text in windows of `length` tokens, the last part held out.
    fn load(&self, length: usize, seed: u64) -> Result<TextSets, CliError> {
        let tokenizer = self.tokenizer()?;
        let held_out = self.held_out();
        let split = Split::new(
            self.tokens(&tokenizer)?,
            &SplitSettings { length, held_out },
        )?;
        let (training, testing) = (split.training.clone(), split.held_out.clone());
        let of_epoch = move |epoch| TextBatcher::shifted(seed, epoch);
        let data = Data::augmented(training, testing, of_epoch, TextBatcher::default());
        Ok(TextSets {
            source: Rc::new(data),
            held_out: Some(HeldOut { tokenizer, split }),
        })
    }

    /// The whole text to test with, in windows of `length` tokens.
    fn load_whole(&self, length: usize) -> Result<TextSets, CliError> {
        let windows = TokenWindows::new(self.tokens(&self.tokenizer()?)?, length)?;
        let testing = windows.overlapping();
        let data = Data::new(windows, testing, TextBatcher::default());
        Ok(TextSets {
            source: Rc::new(data),
            held_out: None,
        })
    }
}

/// Text to train on and to test with.
pub struct TextSets {
    pub source: Rc<dyn Source<Tensor<2, Int>, Tensor<2, Int>>>,
    /// If some of it was held out.
    pub held_out: Option<HeldOut>,
}

/// The held-out part of a text.
pub struct HeldOut {
    pub tokenizer: Tokenizer,
    split: Split,
}

impl HeldOut {
    /// The perplexity of an interpolated 5-gram on the held-out tokens: a model should do better.
    pub fn yardstick(&self) -> Result<f64, CliError> {
        let training = self.split.training.tokens();
        let counted = NGram::fit(training, self.tokenizer.vocabulary(), ORDER)?;
        Ok(counted.perplexity(self.split.held_out.tokens()))
    }

    /// The first held-out tokens, as a prompt.
    pub fn prompt(&self, tokens: usize) -> &[u32] {
        let held_out = self.split.held_out.tokens();
        &held_out[..tokens.min(held_out.len())]
    }
}
