//! `eval --prompt`: continues a text.

use std::mem;

use serde_json::json;
use stovepipe_text::{TextStream, Tokenizer};
use stovepipe_transformer::Sampling;

use super::TrainedRun;
use crate::{
    error::CliError,
    models::{Classifier, LanguageModel, ModelWork},
    output,
};

pub struct Generate<'a> {
    pub run: &'a TrainedRun,
    pub tokenizer: &'a Tokenizer,
    pub prompt: &'a str,
    /// Its tokens, and how it is shown.
    pub encoded: (Vec<u32>, String),
    pub tokens: usize,
    pub sampling: Sampling,
    /// The token that ends the text.
    pub end: Option<u32>,
}

impl ModelWork for Generate<'_> {
    type Done = ();

    fn classify<L: Classifier>(self, _: Vec<L>) -> Result<(), CliError> {
        Err(CliError::NotOfImages)
    }

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<(), CliError> {
        let (run, tokenizer, prompt) = (self.run, self.tokenizer, self.prompt);
        let pipeline = run.pipeline(layers)?;
        let (prompt_tokens, shown_prompt) = self.encoded;
        // Returns whether anybody reads on.
        let show = |text: &str| match run.json {
            true => Ok(true),
            false => output::print(text),
        };
        let (mut stream, mut shown) = (TextStream::new(tokenizer.clone()), Ok(true));
        // Only with the first token: what is wrong is said before.
        let mut before = shown_prompt.as_str();
        let each = &mut |token| {
            if Some(token) == self.end {
                return false;
            }
            let text = stream.push(token).map_err(CliError::from);
            shown = text.and_then(|text| show(&(mem::take(&mut before).to_owned() + &text)));
            matches!(shown, Ok(true))
        };
        let tokens = L::generate(&pipeline, &prompt_tokens, self.tokens, &self.sampling, each)?;
        if shown? {
            show(&(before.to_owned() + &stream.finish()? + "\n"))?;
        }
        if run.json {
            let tokens = tokens.strip_suffix(self.end.as_slice()).unwrap_or(&tokens);
            let text = tokenizer.decode(tokens)?;
            output::print_either(
                true,
                || json!({ "prompt": prompt, "text": text }),
                String::new,
            )?;
        }
        Ok(())
    }
}
