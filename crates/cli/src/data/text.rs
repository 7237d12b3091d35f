//! A text of the user's, or the one that is part of the program, and a yardstick for models of it.

use std::{fs, path::PathBuf, rc::Rc, sync::Arc};

use burn::tensor::{Int, Tensor};
use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::{
    schedule::count,
    train::{Data, Source, data::Fingerprint},
};
use stovepipe_text::{
    NGram, Split, SplitSettings, Text as Contained, TextBatcher, TokenWindows, Tokenizer,
};

use super::fingerprint::{fingerprint, hashed};
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
    /// Share of the tokens, the last ones, kept for testing
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    held_out: f64,
}

impl Text {
    pub fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        Ok(match &self.tokenizer {
            Some(path) => Tokenizer::read(path)?,
            None => Tokenizer::bytes(),
        })
    }

    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        Ok(self.read(tokenizer)?.0)
    }

    /// The tokens, and the data's fingerprint.
    fn read(&self, tokenizer: &Tokenizer) -> Result<(Arc<[u32]>, Fingerprint), CliError> {
        let text = match &self.text {
            Some(path) => Contained::read(path)?,
            None => Contained::embedded()?,
        };
        let tokens = text.encode(tokenizer)?;
        let mut parts = vec![("text", hashed(text.documents()))];
        if let Some(path) = &self.tokenizer {
            parts.push((
                "tokenizer",
                hashed([fs::read(path).map_err(CliError::file(path))?]),
            ));
        }
        Ok((tokens, fingerprint(parts)))
    }

    /// The text in windows of `length` tokens, the last part held out.
    pub fn load(&self, length: usize, seed: u64) -> Result<TextSets, CliError> {
        let (tokenizer, held_out) = (self.tokenizer()?, self.held_out);
        let (tokens, fingerprint) = self.read(&tokenizer)?;
        let split = Split::new(tokens, &SplitSettings { length, held_out })?;
        let (training, testing) = (split.training.clone(), split.held_out.clone());
        let tokens = training.tokens().len();
        let of_epoch = move |epoch| TextBatcher::shifted(seed, epoch);
        let data = Data::augmented(training, testing, of_epoch, TextBatcher::default());
        let kept = split.held_out.tokens().len();
        Ok(TextSets {
            about: self.about(&format!(
                "{} to train on, {kept} kept for testing",
                count(tokens, "token")
            )),
            source: Rc::new(data.with_fingerprint(fingerprint)),
            held_out: Some(HeldOut { tokenizer, split }),
        })
    }

    /// The whole text to test with, in windows of `length` tokens.
    pub fn load_whole(&self, length: usize) -> Result<TextSets, CliError> {
        let (tokens, fingerprint) = self.read(&self.tokenizer()?)?;
        let about = self.about(&format!("{} to test with", count(tokens.len(), "token")));
        let windows = TokenWindows::new(tokens, length)?;
        let testing = windows.overlapping();
        let data = Data::new(windows, testing, TextBatcher::default());
        Ok(TextSets {
            source: Rc::new(data.with_fingerprint(fingerprint)),
            held_out: None,
            about,
        })
    }

    fn about(&self, found: &str) -> String {
        match &self.text {
            Some(path) => format!("{}: {found}", path.display()),
            None => format!("the text of this program: {found}"),
        }
    }
}

pub struct TextSets {
    pub source: Rc<dyn Source<Tensor<2, Int>, Tensor<2, Int>>>,
    /// If some of it was held out.
    pub held_out: Option<HeldOut>,
    /// What was loaded, in a line.
    pub about: String,
}

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
