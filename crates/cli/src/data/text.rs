//! A text of the user's, or the one that is part of the program.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe_text::Text as Contained;

use super::{
    data_set::{Contents, DataSet},
    texts::TextData,
};
use crate::error::CliError;

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

impl TextData for Text {
    fn text(&self) -> Result<Contained, CliError> {
        Ok(match &self.text {
            Some(path) => Contained::read(path)?,
            None => Contained::embedded()?,
        })
    }

    fn tokenizer_file(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    fn held_out(&self) -> f64 {
        self.held_out
    }
}
