//! The data sets that the program knows. A file each says everything about one; the list below names them.

mod chat;
mod cifar;
mod data_set;
mod digits;
mod examples;
mod fingerprint;
mod folders;
mod images;
mod numbers;
mod text;
mod text_sets;

use std::path::Path;

use serde::Serialize;
use toml::Table;

pub use self::{
    data_set::{Contents, DataSet, ImageData, TextData, TextSamples, check},
    examples::padded,
    fingerprint::of_classes,
    images::{ImageSets, Labels},
    text_sets::HeldOut,
};
use crate::{
    choice::{Choices, choices},
    files::TOKENIZER,
};

choices! {
    /// A data set and its settings. The first that the model reads is the default.
    pub enum AnyDataSet: dyn DataSet, "data" {
        Digits(digits::Digits) = "digits",
        Cifar10(cifar::Cifar10) = "cifar10",
        Cifar100(cifar::Cifar100) = "cifar100",
        ImageNet(folders::Folders) = "imagenet",
        Text(text::Text) = "text",
        Chat(chat::Chat) = "chat",
        Numbers(numbers::Numbers) = "numbers",
    }
}

/// Whether a setting changes the training set alone, by its place among flags.
pub fn of_training(id: &str) -> bool {
    let settings =
        "per_class crop_padding flip cutout crop_area color_jitter rand_augment magnitude mixup";
    settings.split(' ').any(|own| own == id)
}

pub fn data_sets() -> Choices<AnyDataSet> {
    Choices::new(AnyDataSet::all(), |data| data.settle())
}

impl AnyDataSet {
    /// Its name and the settings that stay the same in all parts of a run.
    pub fn fixed_settings(&self) -> Table {
        let mut table = self.table();
        table.retain(|key, _| self.may_change().iter().all(|own| *own != key));
        table.insert("data".to_owned(), self.name().into());
        table
    }

    /// Takes texts with the tokenizer of a model's folder for conversations, with its template and the tokens around them.
    pub fn converse(&mut self, folder: &Path) {
        let own = folder.join(TOKENIZER);
        if let Self::Text(text) = self
            && own.is_file()
            && text.tokenizer_file().as_ref() == Some(&own)
        {
            *self = Self::Chat(chat::Chat::with_tokenizer(own));
        }
    }
}

/// A data set as a table of a configuration.
pub fn serialize<S: serde::Serializer>(own: &AnyDataSet, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Section<'a> {
        data: &'static str,
        #[serde(flatten)]
        own: &'a AnyDataSet,
    }
    let data = own.name();
    Section { data, own }.serialize(serializer)
}
