//! What is trained on: its settings, and the sets that they name.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe::train::{Data, TrainError};
use stovepipe_cifar::{Augmentation, Cifar, CifarBatcher, CifarImage, Labels};
use stovepipe_digits::{CLASSES, Digit, DigitBatcher, Digits};

use crate::error::CliError;

/// The side of an image: more would only be a mistake.
const MOST_PIXELS: u8 = 32;

/// What is trained on. A setting that the data set does not have is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DataSettings {
    /// Data set
    #[arg(long, required = false, value_enum)]
    pub data: DataName,
    /// Folder of CIFAR: what the official binary archive unpacks to, or the folder around it
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Labels of CIFAR-100
    #[arg(long, value_enum)]
    pub labels: Option<LabelsSetting>,
    /// Black pixels on each side of CIFAR's training images, before a random crop; 0 for no crop
    #[arg(long, value_name = "N")]
    pub crop_padding: Option<u8>,
    /// Whether half of CIFAR's training images are mirrored
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub flip: Option<bool>,
    /// Side of the square cut out of CIFAR's training images, such as 16; 0 for none
    #[arg(long, value_name = "N")]
    pub cutout: Option<u8>,
}

/// A data set by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum DataName {
    /// 1,797 handwritten digits, part of this program
    Digits,
    /// CIFAR-10, from --data-dir
    Cifar10,
    /// CIFAR-100, from --data-dir
    Cifar100,
}

/// Labels of CIFAR-100 by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum LabelsSetting {
    /// Its 100 classes
    Fine,
    /// Its 20 superclasses
    Coarse,
}

impl Default for DataSettings {
    fn default() -> Self {
        Self {
            data: DataName::Digits,
            data_dir: None,
            labels: None,
            crop_padding: None,
            flip: None,
            cutout: None,
        }
    }
}

impl DataSettings {
    /// All settings that a data set may have, as they are by default.
    pub fn all() -> Self {
        let mut all = Self {
            data: DataName::Cifar100,
            ..Self::default()
        };
        all.fill_in();
        all
    }

    /// Refuses settings that the data set does not have, and fills in those that it has.
    pub fn settle(&mut self) -> Result<(), CliError> {
        // An empty path, as a configuration may have it, is none.
        self.data_dir = (self.data_dir.take()).filter(|path| !path.as_os_str().is_empty());
        self.refuse_foreign()?;
        check_pixels("crop-padding", self.crop_padding)?;
        check_pixels("cutout", self.cutout)?;
        self.fill_in();
        Ok(())
    }

    /// Without this, a flag would be taken and do nothing.
    fn refuse_foreign(&self) -> Result<(), CliError> {
        let is_cifar = self.data != DataName::Digits;
        let of_cifar = [
            ("data-dir", self.data_dir.is_some()),
            ("crop-padding", self.crop_padding.is_some()),
            ("flip", self.flip.is_some()),
            ("cutout", self.cutout.is_some()),
        ];
        let foreign = |of, setting| CliError::NotOfData {
            setting,
            of,
            data: self.name(),
        };
        match of_cifar.into_iter().find(|&(_, is_set)| is_set) {
            Some((setting, _)) if !is_cifar => Err(foreign("cifar10 and cifar100", setting)),
            _ if self.labels.is_some() && self.data != DataName::Cifar100 => {
                Err(foreign("cifar100", "labels"))
            }
            _ => Ok(()),
        }
    }

    /// The usual settings of the data set, where none were given.
    fn fill_in(&mut self) {
        if self.data == DataName::Digits {
            return;
        }
        let augmentation = self.augmentation();
        self.crop_padding = Some(augmentation.crop_padding);
        self.flip = Some(augmentation.flip);
        self.cutout = Some(augmentation.cutout);
        if self.data == DataName::Cifar100 {
            self.labels.get_or_insert(LabelsSetting::Fine);
        }
    }

    /// How many classes there are; needs no data.
    pub fn classes(&self) -> usize {
        self.cifar_labels().map_or(CLASSES, Labels::classes)
    }

    /// How many training samples there are, if all are there.
    pub fn usual_samples(&self) -> usize {
        match self.data {
            DataName::Digits => 1437,
            DataName::Cifar10 | DataName::Cifar100 => 50_000,
        }
    }

    /// What CIFAR's labels are; none if it is not CIFAR that is trained on.
    pub fn cifar_labels(&self) -> Option<Labels> {
        match (self.data, self.labels) {
            (DataName::Digits, _) => None,
            (DataName::Cifar10, _) => Some(Labels::Cifar10),
            (DataName::Cifar100, Some(LabelsSetting::Coarse)) => Some(Labels::Cifar100Coarse),
            (DataName::Cifar100, _) => Some(Labels::Cifar100Fine),
        }
    }

    fn augmentation(&self) -> Augmentation {
        let usual = Augmentation::default();
        Augmentation {
            crop_padding: self.crop_padding.unwrap_or(usual.crop_padding),
            flip: self.flip.unwrap_or(usual.flip),
            cutout: self.cutout.unwrap_or(usual.cutout),
        }
    }

    /// The data set as flags call it.
    fn name(&self) -> String {
        let value = self.data.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn folder(&self) -> Result<&Path, CliError> {
        let folder = self.data_dir.as_deref();
        folder.ok_or_else(|| CliError::NoDataFolder { data: self.name() })
    }

    /// CIFAR's training images as they are.
    pub fn cifar_images(&self, labels: Labels) -> Result<Cifar, CliError> {
        Ok(Cifar::train(labels, self.folder()?)?)
    }

    /// CIFAR, its training images augmented by draws from `seed`.
    pub fn cifar(
        &self,
        labels: Labels,
        seed: u64,
    ) -> Result<Data<CifarImage, Cifar, CifarBatcher>, CliError> {
        let folder = self.folder()?;
        let augmentation = self.augmentation();
        let (train, test) = (Cifar::train(labels, folder)?, Cifar::test(labels, folder)?);
        let batcher = move |epoch| CifarBatcher::augmented(augmentation, seed, epoch);
        Ok(Data::new(train, test, CifarBatcher::default()).with_training_batcher(batcher))
    }
}

/// The digits.
pub fn digits() -> Result<Data<Digit, Digits, DigitBatcher>, CliError> {
    Ok(Data::new(Digits::train()?, Digits::test()?, DigitBatcher))
}

fn check_pixels(setting: &'static str, value: Option<u8>) -> Result<(), TrainError> {
    match value {
        Some(value) if value > MOST_PIXELS => Err(TrainError::Setting {
            setting,
            value: value.to_string(),
            range: "from 0 to 32",
        }),
        _ => Ok(()),
    }
}
