//! The models that the program knows. A file each says everything about one; the list below names them.

mod amoebanet;
mod decoder;
mod model;
mod transformer_lm;
mod unet;
mod vit;

pub use self::model::{
    Classifier, Hub, LanguageModel, Model, ModelWork, Origin, Reads, Segmenter, Sizes,
};
use crate::{
    choice::{Choices, choices},
    error::CliError,
};

/// The models by name; the first that reads the data is the default.
macro_rules! models {
    ($($Variant:ident($Type:ty) = $name:literal),+ $(,)?) => {
        choices! {
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

            /// Each as `doctor` takes it.
            fn to_compare() -> Vec<Self> {
                vec![$(Self::$Variant(<$Type>::to_compare())),+]
            }
        }
    };
}

models! {
    AmoebaNetD(amoebanet::AmoebaNetD) = "amoebanet-d",
    AmoebaNetB(amoebanet::AmoebaNetB) = "amoebanet-b",
    Vit(vit::Vit) = "vit",
    TransformerLm(transformer_lm::TransformerLm) = "transformer-lm",
    Decoder(decoder::Decoder) = "decoder",
    UNet(unet::UNet) = "unet",
}

pub fn trained() -> Choices<AnyModel> {
    let mut all = AnyModel::all();
    all.retain(|model| model.is_trained());
    Choices::new(all, |model| model.settle(32))
}

/// All models, as `doctor` takes them.
pub fn to_compare() -> Choices<AnyModel> {
    Choices::new(AnyModel::to_compare(), |model| model.settle(32))
}

/// All models, as `verify` takes them.
pub fn to_verify() -> Choices<AnyModel> {
    Choices::new(AnyModel::to_verify(), |model| model.settle(32))
}
