//! Data sets of text, loaded, and a yardstick for models of them.

use std::rc::Rc;

use burn::tensor::{Int, Tensor};
use stovepipe::train::Source;
use stovepipe_chat::Example;
use stovepipe_text::{NGram, Split, Tokenizer};

use crate::error::CliError;

/// Tokens that the yardstick sees before the one that it predicts, and that one.
const ORDER: usize = 5;

pub struct TextSets {
    pub source: Rc<dyn Source<Tensor<2, Int>, Tensor<2, Int>>>,
    /// If some of it was held out.
    pub held_out: Option<HeldOut>,
    /// Held-out examples with answers, to be answered exactly.
    pub answers: Vec<Example>,
    /// What was loaded, in a line.
    pub about: String,
}

pub struct HeldOut {
    pub tokenizer: Tokenizer,
    pub split: Split,
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
