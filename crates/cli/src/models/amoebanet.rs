//! AmoebaNet-D and AmoebaNet-B, by Real et al.

use burn::{store::KeyRemapper, tensor::Device};
use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};
use stovepipe::train::weights::NameAndShape;
use stovepipe_amoebanet::{AmoebaNetBConfig, AmoebaNetDConfig, Stem};

use super::model::{Model, ModelWork, Sizes, needs};
use crate::{error::CliError, pretrained::Head};

/// ImageNet's stem makes a small image too small for the cells.
fn stem(sizes: &Sizes) -> Stem {
    if sizes.image < 96 {
        Stem::Small
    } else {
        Stem::ImageNet
    }
}

/// Both differ in their cells alone.
macro_rules! amoebanet {
    ($(#[$about:meta])* $Name:ident, $Config:ident) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
        #[serde(default, rename_all = "kebab-case")]
        pub struct $Name {
            /// Normal cells, divisible by 3
            #[arg(long, value_name = "N", default_value_t = 3)]
            layers: usize,
            /// Filters, divisible by 4
            #[arg(long, value_name = "N", default_value_t = 16)]
            filters: usize,
            /// Whether an auxiliary head adds a loss at two thirds of the depth
            #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
            auxiliary: bool,
            /// Probability that training drops a branch of the last cell or block; less in those before
            #[arg(long, value_name = "P", default_value_t = 0.0)]
            drop_path: f64,
        }

        impl $Name {
            fn config(&self, classes: usize) -> $Config {
                $Config::new(self.layers, self.filters, classes)
            }
        }

        impl Model for $Name {
            fn head(&self) -> Option<Head> {
                Some(Head::new(self.config(1).classifier(), Some(".auxiliary.")))
            }

            fn names_elsewhere(&self) -> Option<KeyRemapper> {
                Some(self.config(1).torch_keys())
            }

            fn name_elsewhere(&self, _: usize, tensors: &mut [NameAndShape]) {
                self.config(1).to_torch(tensors);
            }

            fn sample_needs(&self, sizes: &Sizes) -> u64 {
                let side = match stem(sizes) {
                    Stem::Small => sizes.image,
                    Stem::ImageNet => sizes.image.div_ceil(2),
                };
                needs([self.filters / 4, side, side])
            }

            fn to_verify() -> Self {
                Self {
                    layers: 3,
                    filters: 8,
                    auxiliary: true,
                    drop_path: 0.2,
                }
            }

            /// With 8 filters, some convolutions have one channel: on wgpu, Burn's gradients are then wrong.
            fn to_compare() -> Self {
                Self {
                    filters: 16,
                    ..Self::to_verify()
                }
            }

            fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError> {
                let config = self.config(sizes.classes).with_stem(stem(sizes));
                let config = config
                    .with_auxiliary(self.auxiliary)
                    .with_drop_path(self.drop_path);
                work.classify(config.init(&Device::flex())?)
            }
        }
    };
}

amoebanet!(
    /// AmoebaNet-D(L, D) by Real et al.
    AmoebaNetD,
    AmoebaNetDConfig
);
amoebanet!(
    /// AmoebaNet-B(L, D), with separable convolutions
    AmoebaNetB,
    AmoebaNetBConfig
);
