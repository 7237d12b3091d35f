//! The models that the program knows. A file each says everything about one; the list below names them.

mod amoebanet;
mod model;
mod transformer_lm;
mod unet;
mod vit;

use serde::Serialize;

pub use self::model::{Classifier, LanguageModel, Model, ModelWork, Reads, Segmenter, Sizes};
use crate::{
    choice::{Choices, choices},
    error::CliError,
    pretrained::Pretrained,
};

/// The models by name; the first that reads the data is the default.
macro_rules! models {
    ($($Variant:ident($Type:ty) = $name:literal),+ $(,)?) => {
        choices! {
            /// A model and its settings.
            pub enum AnyModel: dyn Model, "model" { $($Variant($Type) = $name),+ }
        }

        impl AnyModel {
            /// Makes the layers, and does the work on them.
            pub fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError> {
                match self { $(Self::$Variant(model) => model.build(sizes, work)),+ }
            }

            /// Each as `verify` takes it.
            fn to_verify() -> Vec<Self> {
                vec![$(Self::$Variant(<$Type>::to_verify())),+]
            }
        }
    };
}

models! {
    AmoebaNetD(amoebanet::AmoebaNetD) = "amoebanet-d",
    AmoebaNetB(amoebanet::AmoebaNetB) = "amoebanet-b",
    Vit(vit::Vit) = "vit",
    TransformerLm(transformer_lm::TransformerLm) = "transformer-lm",
    UNet(unet::UNet) = "unet",
}

/// The models that can be trained.
pub fn trained() -> Choices<AnyModel> {
    let all = AnyModel::all()
        .into_iter()
        .filter(|model| model.is_trained());
    Choices::new(all.collect(), |model| model.settle(32))
}

/// All models, as `verify` takes them.
pub fn to_verify() -> Choices<AnyModel> {
    Choices::new(AnyModel::to_verify(), |model| model.settle(32))
}

/// A model and the weights that it starts from: a table of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSettings {
    pub model: AnyModel,
    pub pretrained: Pretrained,
}

impl Serialize for ModelSettings {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Table<'a> {
            model: &'static str,
            #[serde(flatten)]
            pretrained: &'a Pretrained,
            #[serde(flatten)]
            own: &'a AnyModel,
        }
        let Self {
            model: own,
            pretrained,
        } = self;
        let model = own.name();
        Table {
            model,
            pretrained,
            own,
        }
        .serialize(serializer)
    }
}
