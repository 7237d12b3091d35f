//! The data sets that the program knows. A file each says everything about one; the list below names them.

mod cifar;
mod data_set;
mod digits;
mod folders;
mod images;
mod labels;
mod text;
mod texts;

use serde::Serialize;

pub use self::{
    data_set::{Contents, DataSet, ImageData},
    images::ImageSets,
    labels::Labels,
    texts::{HeldOut, TextData},
};
use crate::choice::{Choices, choices};

choices! {
    /// A data set and its settings. The first that the model reads is the default.
    pub enum AnyDataSet: dyn DataSet, "data" {
        Digits(digits::Digits) = "digits",
        Cifar10(cifar::Cifar10) = "cifar10",
        Cifar100(cifar::Cifar100) = "cifar100",
        ImageNet(folders::Folders) = "imagenet",
        Text(text::Text) = "text",
    }
}

/// All data sets.
pub fn data_sets() -> Choices<AnyDataSet> {
    Choices::new(AnyDataSet::all(), |data| data.settle())
}

impl AnyDataSet {
    /// Whether a run on the one can be continued on the other.
    pub fn is_same(&self, other: &Self) -> bool {
        let fixed = |data: &Self| {
            let mut table = data.table();
            table.retain(|key, _| data.may_change().iter().all(|own| *own != key));
            table
        };
        self.name() == other.name() && fixed(self) == fixed(other)
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
