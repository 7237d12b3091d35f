//! What the program knows about a data set.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::Arc,
};

use burn::tensor::{Int, Tensor};
use stovepipe::train::TrainError;
use stovepipe_imagenet::Loading;
use stovepipe_text::Tokenizer;

use super::{images::ImageSets, text_sets::TextSets};
use crate::{choice::Configurable, error::CliError, files::TOKENIZER};

/// Everything that the program knows about a data set, besides its settings.
pub trait DataSet: Configurable {
    fn contents(&self) -> Contents<'_>;

    /// How many training samples there are, if all are there.
    fn usual_samples(&self) -> usize;

    /// Fills in the settings that follow from others.
    fn settle(&mut self) {}

    fn check(&self) -> Result<(), CliError> {
        Ok(())
    }

    /// Takes what comes with a model of so many tokens in a folder of the Hugging Face Hub, if no flag names
    /// it.
    fn adopt(&mut self, _folder: &Path, _vocabulary: usize) {}

    /// Takes a run's own copy of its tokenizer: the original may have changed.
    fn set_tokenizer(&mut self, _file: PathBuf) {}

    /// Whether it is known where it lies.
    fn is_located(&self) -> bool {
        true
    }

    /// Settings that may differ between two parts of the same run: where data lie, and how they are read.
    fn may_change(&self) -> &'static [&'static str] {
        &[]
    }
}

pub enum Contents<'a> {
    Images(&'a dyn ImageData),
    Text(&'a dyn TextData),
}

/// How samples are made of texts.
#[derive(Clone, Copy, Debug)]
pub struct TextSamples {
    /// The most tokens of a sample.
    pub length: usize,
    pub seed: u64,
    /// Micro-batches of a mini-batch.
    pub micro_batches: usize,
}

pub trait TextData {
    fn tokenizer(&self) -> Result<Tokenizer, CliError>;

    /// Its file, if it has one.
    fn tokenizer_file(&self) -> Option<PathBuf>;

    /// The files that a run keeps a copy of, and what it calls them.
    fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let tokenizer = self.tokenizer_file();
        tokenizer
            .map(|path| (TOKENIZER, path))
            .into_iter()
            .collect()
    }

    /// The tokens of a prompt, and the prompt as it is shown.
    fn prompt(&self, text: &str) -> Result<(Vec<u32>, String), CliError> {
        Ok((self.tokenizer()?.encode(text)?, text.to_owned()))
    }

    /// All tokens, one after the other.
    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, CliError>;

    /// Some of it held out.
    fn load(&self, samples: TextSamples) -> Result<TextSets, CliError>;

    /// All to test with.
    fn load_whole(&self, samples: TextSamples) -> Result<TextSets, CliError>;

    /// The token that ends an answer.
    fn end(&self) -> Result<Option<u32>, CliError> {
        Ok(None)
    }
}

pub trait ImageData {
    /// Pixels on each side of an image.
    fn image_size(&self) -> usize {
        32
    }

    /// How many classes there are, if all are there.
    fn usual_classes(&self) -> usize;

    fn load(&self, seed: u64) -> Result<ImageSets, CliError>;

    /// The first training images, not augmented, and their classes.
    fn first(&self, samples: usize) -> Result<(Tensor<4>, Tensor<1, Int>), CliError>;

    /// How a picture from elsewhere is shown to a model that was trained on this data set.
    fn view(&self) -> Loading;
}

/// An error unless a setting is in its range.
pub fn check<T: Copy + Debug>(
    setting: &'static str,
    value: impl Into<Option<T>>,
    is_right: impl FnOnce(T) -> bool,
    range: &'static str,
) -> Result<(), TrainError> {
    match value.into().filter(|&value| !is_right(value)) {
        None => Ok(()),
        Some(value) => Err(TrainError::Setting {
            setting,
            value: format!("{value:?}").trim_end_matches(".0").to_owned(),
            range,
        }),
    }
}
