//! CIFAR-10 and CIFAR-100.

use std::path::PathBuf;

use burn::tensor::{Int, Tensor};
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe::train::Data;
use stovepipe_cifar::{Cifar, CifarAugmentation, CifarBatcher, CifarLabels};
use stovepipe_imagenet::Loading;

use super::{
    data_set::{Contents, DataSet, ImageData, check},
    fingerprint::{fingerprint, hashed},
    images::{Classes, ImageSets, first, small_view},
};
use crate::{
    choice::Configurable,
    error::{CliError, usage},
};

/// The side of an image: to cut out or to pad more is a mistake.
const SIDE: u16 = 32;

/// What the folder has to hold.
const FOLDER: &str = "the folder that the archive unpacks to, the binary version from \
                      https://www.cs.toronto.edu/~kriz/cifar.html";

/// CIFAR-100 has two kinds of labels, which is all that differs.
macro_rules! cifar {
    ($(#[$about:meta])* $Name:ident, |$own:ident| $labels:expr, $($setting:tt)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
        #[serde(default, rename_all = "kebab-case")]
        pub struct $Name {
            /// Folder of the unpacked binary archive, or the folder around it
            #[arg(long, value_name = "DIR")]
            data_dir: Option<PathBuf>,
            $($setting)*
            /// Black pixels on each side of a training image, before a random crop; 0 for no crop
            #[arg(long, value_name = "N", default_value_t = CifarAugmentation::default().crop_padding)]
            crop_padding: u8,
            /// Whether half of the training images are mirrored
            #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = CifarAugmentation::default().flip)]
            flip: bool,
            /// Side of the square cut out of training images; 0 for none
            #[arg(long, value_name = "N", default_value_t = CifarAugmentation::default().cutout.into())]
            cutout: u16,
        }

        impl $Name {
            fn labels(&self) -> CifarLabels {
                let $own = self;
                $labels
            }

            fn folder(&self) -> Result<&PathBuf, CliError> {
                let missing = || usage!("{} needs --data-dir: {FOLDER}", self.name());
                self.data_dir.as_ref().ok_or_else(missing)
            }
        }

        impl DataSet for $Name {
            fn contents(&self) -> Contents<'_> {
                Contents::Images(self)
            }

            fn usual_samples(&self) -> usize {
                50_000
            }

            fn check(&self) -> Result<(), CliError> {
                let (pixels, range) = (|side| side <= SIDE, "from 0 to 32");
                check("crop-padding", u16::from(self.crop_padding), pixels, range)?;
                Ok(check("cutout", self.cutout, pixels, range)?)
            }

            fn is_located(&self) -> bool {
                self.data_dir.is_some()
            }

            fn may_change(&self) -> &'static [&'static str] {
                &["data-dir"]
            }
        }

        impl ImageData for $Name {
            fn usual_classes(&self) -> usize {
                self.labels().classes()
            }

            fn load(&self, seed: u64) -> Result<ImageSets, CliError> {
                let (labels, folder) = (self.labels(), self.folder()?);
                let (train, test) = (Cifar::train(labels, folder)?, Cifar::test(labels, folder)?);
                let classes = train.names().to_vec();
                let fingerprint = fingerprint([
                    ("training images", hashed([train.as_bytes()])),
                    ("test images", hashed([test.as_bytes()])),
                ]);
                let augmentation = CifarAugmentation {
                    crop_padding: self.crop_padding,
                    flip: self.flip,
                    cutout: self.cutout.try_into().unwrap_or(u8::MAX),
                };
                let of_epoch = move |epoch| Classes(CifarBatcher::augmented(augmentation, seed, epoch));
                let data = Data::augmented(train, test, of_epoch, Classes(CifarBatcher::default()));
                Ok(ImageSets::new(folder.display(), data, classes, fingerprint))
            }

            fn first(&self, samples: usize) -> Result<(Tensor<4>, Tensor<1, Int>), CliError> {
                let images = Cifar::train(self.labels(), self.folder()?)?;
                Ok(first(&images, &CifarBatcher::default(), samples))
            }

            fn view(&self) -> Loading {
                small_view(self.labels().mean(), self.labels().std())
            }
        }
    };
}

cifar!(
    /// CIFAR-10, from --data-dir
    Cifar10,
    |_own| CifarLabels::Cifar10,
);
cifar!(
    /// CIFAR-100, from --data-dir
    Cifar100,
    |own| match own.labels {
        LabelsSetting::Fine => CifarLabels::Cifar100Fine,
        LabelsSetting::Coarse => CifarLabels::Cifar100Coarse,
    },
    /// Labels of the images
    #[arg(long, value_enum, default_value_t = LabelsSetting::Fine)]
    labels: LabelsSetting,
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
enum LabelsSetting {
    /// 100 classes
    Fine,
    /// 20 superclasses
    Coarse,
}
