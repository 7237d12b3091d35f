//! A text of the user's, or the one that is part of the program.

use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::{
    schedule::count,
    train::{Data, data::Fingerprint},
};
use stovepipe_chat::ChatTokenizer;
use stovepipe_text::{
    Split, SplitSettings, Text as Contained, TextBatcher, TokenWindows, Tokenizer,
};

use super::{
    data_set::{Contents, DataSet, TextData, TextSamples},
    fingerprint::{fingerprint, hashed},
    text_sets::{HeldOut, TextSets},
};
use crate::{
    error::CliError,
    files::{TOKENIZER, TOKENIZER_CONFIG, has_no_weights},
};

/// Text, from --text, or one that is part of this program
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Text {
    /// Text to learn from: a file, or a folder of them [default: a text that is part of this program]
    #[arg(long, value_name = "PATH")]
    text: Option<PathBuf>,
    /// A tokenizer.json of Hugging Face [default: each byte is a token]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
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

    fn adopt(&mut self, folder: &Path, vocabulary: usize) {
        self.tokenizer = self.tokenizer.take().or(beside(folder, vocabulary));
    }

    fn set_tokenizer(&mut self, file: PathBuf) {
        self.tokenizer = Some(file);
    }
}

impl TextData for Text {
    fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        tokenizer_of(self.tokenizer.as_deref())
    }

    fn tokenizer_file(&self) -> Option<PathBuf> {
        self.tokenizer.clone()
    }

    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        Ok(self.read(tokenizer)?.0)
    }

    /// In windows, the last part held out.
    fn end(&self) -> Result<Option<u32>, CliError> {
        let folder = self.tokenizer.as_deref().and_then(Path::parent);
        match folder.filter(|folder| folder.join(TOKENIZER_CONFIG).is_file()) {
            Some(folder) => Ok(ChatTokenizer::of_folder(folder)?.eos()),
            None => Ok(None),
        }
    }

    fn load(&self, samples: TextSamples) -> Result<TextSets, CliError> {
        let TextSamples { length, seed, .. } = samples;
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
            answers: Vec::new(),
        })
    }

    /// In windows.
    fn load_whole(&self, samples: TextSamples) -> Result<TextSets, CliError> {
        let (tokens, fingerprint) = self.read(&self.tokenizer()?)?;
        let about = self.about(&format!("{} to test with", count(tokens.len(), "token")));
        let windows = TokenWindows::new(tokens, samples.length)?;
        let testing = windows.overlapping();
        let data = Data::new(windows, testing, TextBatcher::default());
        Ok(TextSets {
            source: Rc::new(data.with_fingerprint(fingerprint)),
            held_out: None,
            answers: Vec::new(),
            about,
        })
    }
}

impl Text {
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

    fn about(&self, found: &str) -> String {
        match &self.text {
            Some(path) => format!("{}: {found}", path.display()),
            None => format!("the text of this program: {found}"),
        }
    }
}

/// The tokenizer in a model's folder. Models of 256 tokens may have none: their tokens are bytes. So may
/// folders without weights, which can only be inspected.
pub fn beside(folder: &Path, vocabulary: usize) -> Option<PathBuf> {
    let path = folder.join(TOKENIZER);
    let may_lack = vocabulary == 256 || has_no_weights(folder);
    (path.is_file() || !may_lack).then_some(path)
}

/// The tokenizer of a file, or bytes.
pub fn tokenizer_of(file: Option<&Path>) -> Result<Tokenizer, CliError> {
    Ok(match file {
        Some(path) => Tokenizer::read(path)?,
        None => Tokenizer::bytes(),
    })
}
