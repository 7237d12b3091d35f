//! Text, and a yardstick for models of it.

use std::{path::PathBuf, rc::Rc, sync::Arc};

use burn::tensor::{Int, Tensor};
use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::train::{Data, Source};
use stovepipe_text::{
    NGram, Split, SplitSettings, Text as Texts, TextBatcher, TokenWindows, Tokenizer,
};

use super::data_set::{Contents, DataSet};
use crate::error::CliError;

/// Tokens that the yardstick sees before the one that it predicts, and that one.
const ORDER: usize = 5;

/// Text, from --text, or one that is part of this program
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Text {
    /// Text to learn from: a file, or a folder of them [default: a text that is part of this program]
    #[arg(long, value_name = "PATH")]
    text: Option<PathBuf>,
    /// A tokenizer.json of Hugging Face [default: each byte is a token]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Share of the tokens, the last ones, held out to test with
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    held_out: f64,
}

impl DataSet for Text {
    fn contents(&self) -> Contents<'_> {
        Contents::Text(self)
    }

    fn usual_samples(&self) -> usize {
        10_000
    }

    fn may_change(&self) -> &'static [&'static str] {
        &["text", "tokenizer"]
    }
}

impl Text {
    /// The text in windows of `length` tokens, the last part held out.
    pub fn load(&self, length: usize, seed: u64) -> Result<TextSets, CliError> {
        let tokenizer = self.tokenizer()?;
        let held_out = self.held_out;
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
    pub fn load_whole(&self, length: usize) -> Result<TextSets, CliError> {
        let windows = TokenWindows::new(self.tokens(&self.tokenizer()?)?, length)?;
        let testing = windows.overlapping();
        let data = Data::new(windows, testing, TextBatcher::default());
        Ok(TextSets {
            source: Rc::new(data),
            held_out: None,
        })
    }

    /// The tokens of the text.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        let text = match &self.text {
            Some(path) => Texts::read(path)?,
            None => Texts::embedded()?,
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
