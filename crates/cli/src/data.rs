//! What is trained on: its settings, and the sets that they name.

mod digits;
mod images;
mod labels;
mod ranges;
mod text;

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe_cifar::{Cifar, CifarAugmentation, CifarBatcher, CifarLabels};
use stovepipe_imagenet::Loading;

use crate::error::CliError;

pub use digits::DigitsSetting;
pub use images::{ImageNames, ImageSets, load_picture};
pub use labels::Labels;
pub use text::{HeldOut, TextSets};

/// What is trained on. A setting that the data set does not have is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Data")]
pub struct DataSettings {
    /// Data set
    #[arg(long, required = false, value_enum)]
    pub data: DataName,
    /// Digits that are trained on, such as 5-9 or 1,3,5
    #[arg(long, value_name = "DIGITS")]
    pub digits: Option<DigitsSetting>,
    /// Training images of each digit, drawn by the seed; 0 for all
    #[arg(long, value_name = "N")]
    pub per_class: Option<usize>,
    /// Folder of CIFAR (what the official binary archive unpacks to, or the folder around it), or of images
    /// (train and val with a folder for each class, or class folders alone)
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Labels of CIFAR-100
    #[arg(long, value_enum)]
    pub labels: Option<LabelsSetting>,
    /// Labels of the validation images, where these have a folder but no class folders in it [default: a file beside them]
    #[arg(long, value_name = "FILE")]
    pub val_labels: Option<PathBuf>,
    /// Share of images held out to test with, where there are class folders alone
    #[arg(long, value_name = "SHARE")]
    pub val_share: Option<f64>,
    /// Side that images are cropped to, in pixels
    #[arg(long, value_name = "N")]
    pub image_size: Option<u32>,
    /// Length that the shorter side of a test image is resized to before its middle is cropped
    #[arg(long, value_name = "N")]
    pub resize: Option<u32>,
    /// How images are resized
    #[arg(long, value_enum)]
    pub interpolation: Option<InterpolationSetting>,
    /// Least share of a training image's area that is cropped; 1 for no random crop but of the shape
    #[arg(long, value_name = "SHARE")]
    pub crop_area: Option<f64>,
    /// Black pixels on each side of CIFAR's training images, before a random crop; 0 for no crop
    #[arg(long, value_name = "N")]
    pub crop_padding: Option<u8>,
    /// Whether half of the training images are mirrored
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub flip: Option<bool>,
    /// Strength of colour jitter: brightness, contrast and saturation by up to so much, hue by a quarter of it;
    /// 0 for none
    #[arg(long, value_name = "STRENGTH")]
    pub color_jitter: Option<f64>,
    /// Operations of RandAugment on each training image; 0 for none
    #[arg(long, value_name = "N")]
    pub rand_augment: Option<usize>,
    /// Magnitude of RandAugment's operations, from 0 to 30
    #[arg(long, value_name = "M")]
    pub magnitude: Option<usize>,
    /// Side of the square cut out of training images, such as 16 of CIFAR's; 0 for none
    #[arg(long, value_name = "N")]
    pub cutout: Option<u16>,
    /// Images are mixed in pairs, by shares from Beta(ALPHA, ALPHA); 0 for no mixing
    #[arg(long, value_name = "ALPHA")]
    pub mixup: Option<f64>,
    /// Files that may be skipped, since they are gone, damaged or no images; one more ends the run
    #[arg(long, value_name = "N")]
    pub skip: Option<usize>,
    /// Threads that load images; 0 for as many as there are cores
    #[arg(long, value_name = "N")]
    pub loaders: Option<usize>,
    /// Text to learn from: a file, or a folder of them [default: one that is part of this program]
    #[arg(long, value_name = "PATH")]
    pub text: Option<PathBuf>,
    /// A tokenizer.json of Hugging Face [default: each byte is a token]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Share of a text's tokens, the last ones, held out to test with
    #[arg(long, value_name = "SHARE")]
    pub held_out: Option<f64>,
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
    /// ImageNet, or any other folder of class folders, from --data-dir
    ImageNet,
    /// Text, from --text, or one that is part of this program
    Text,
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

/// How images are resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum InterpolationSetting {
    /// By straight lines
    Bilinear,
    /// By curves
    Bicubic,
}

/// Which data sets have a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Digits,
    Folders,
    Augmented,
    Cifar,
    Cifar100,
    ImageNet,
    Text,
}

impl Of {
    fn has(self, data: DataName) -> bool {
        use DataName::*;
        match self {
            Self::Digits => data == Digits,
            Self::Folders | Self::Augmented => matches!(data, Cifar10 | Cifar100 | ImageNet),
            Self::Cifar => matches!(data, Cifar10 | Cifar100),
            Self::Cifar100 => data == Cifar100,
            Self::ImageNet => data == ImageNet,
            Self::Text => data == Text,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::Folders | Self::Augmented => "cifar10, cifar100 and imagenet",
            Self::Cifar => "cifar10 and cifar100",
            Self::Cifar100 => "cifar100",
            Self::ImageNet => "imagenet",
            Self::Text => "text",
        }
    }
}

impl Default for DataSettings {
    fn default() -> Self {
        Self::bare(DataName::Digits)
    }
}

impl DataSettings {
    /// A data set and nothing said of it.
    pub fn bare(data: DataName) -> Self {
        Self {
            data,
            digits: None,
            per_class: None,
            data_dir: None,
            labels: None,
            val_labels: None,
            val_share: None,
            image_size: None,
            resize: None,
            interpolation: None,
            crop_area: None,
            crop_padding: None,
            flip: None,
            color_jitter: None,
            rand_augment: None,
            magnitude: None,
            cutout: None,
            mixup: None,
            skip: None,
            loaders: None,
            text: None,
            tokenizer: None,
            held_out: None,
        }
    }

    /// A data set and its usual settings.
    pub fn usual(data: DataName) -> Self {
        let mut settings = Self::bare(data);
        settings.fill_in();
        if data == DataName::ImageNet {
            settings.val_share = Some(settings.held_out_share());
        }
        settings
    }

    /// Refuses settings that the data set does not have, and fills in those that it has.
    pub fn settle(&mut self) -> Result<(), CliError> {
        // An empty path, as a configuration may have it, is none.
        for path in [
            &mut self.data_dir,
            &mut self.val_labels,
            &mut self.text,
            &mut self.tokenizer,
        ] {
            *path = path.take().filter(|path| !path.as_os_str().is_empty());
        }
        self.refuse_foreign()?;
        self.fill_in();
        match self.data {
            DataName::ImageNet => self.check_folders(),
            DataName::Cifar10 | DataName::Cifar100 => Ok(self.check_cifar()?),
            DataName::Digits | DataName::Text => Ok(()),
        }
    }

    /// Without this, a flag would be taken and do nothing.
    fn refuse_foreign(&self) -> Result<(), CliError> {
        match self.given().find(|(_, of)| !of.has(self.data)) {
            None => Ok(()),
            Some((setting, of)) => Err(CliError::NotOfData {
                setting,
                of: of.name(),
                data: self.name(),
            }),
        }
    }

    /// A setting that was given, but for those that say where data are and what their labels mean.
    pub fn beyond_the_data(&self) -> Option<&'static str> {
        let mut given = self.given().map(|(setting, _)| setting);
        given.find(|&setting| !["data-dir", "labels"].contains(&setting))
    }

    /// The settings that were given, and which data sets have them.
    fn given(&self) -> impl Iterator<Item = (&'static str, Of)> {
        let all = [
            ("digits", self.digits.is_some(), Of::Digits),
            ("per-class", self.per_class.is_some(), Of::Digits),
            ("data-dir", self.data_dir.is_some(), Of::Folders),
            ("labels", self.labels.is_some(), Of::Cifar100),
            ("val-labels", self.val_labels.is_some(), Of::ImageNet),
            ("val-share", self.val_share.is_some(), Of::ImageNet),
            ("image-size", self.image_size.is_some(), Of::ImageNet),
            ("resize", self.resize.is_some(), Of::ImageNet),
            ("interpolation", self.interpolation.is_some(), Of::ImageNet),
            ("crop-area", self.crop_area.is_some(), Of::ImageNet),
            ("crop-padding", self.crop_padding.is_some(), Of::Cifar),
            ("flip", self.flip.is_some(), Of::Augmented),
            ("color-jitter", self.color_jitter.is_some(), Of::ImageNet),
            ("rand-augment", self.rand_augment.is_some(), Of::ImageNet),
            ("magnitude", self.magnitude.is_some(), Of::ImageNet),
            ("cutout", self.cutout.is_some(), Of::Augmented),
            ("mixup", self.mixup.is_some(), Of::ImageNet),
            ("skip", self.skip.is_some(), Of::ImageNet),
            ("loaders", self.loaders.is_some(), Of::ImageNet),
            ("text", self.text.is_some(), Of::Text),
            ("tokenizer", self.tokenizer.is_some(), Of::Text),
            ("held-out", self.held_out.is_some(), Of::Text),
        ];
        all.into_iter()
            .filter(|(_, given, _)| *given)
            .map(|(setting, _, of)| (setting, of))
    }

    /// The usual settings of the data set, where none were given.
    fn fill_in(&mut self) {
        match self.data {
            DataName::Digits => {
                self.digits.get_or_insert_default();
                self.per_class.get_or_insert(0);
            }
            DataName::Cifar10 | DataName::Cifar100 => {
                let usual = CifarAugmentation::default();
                self.crop_padding.get_or_insert(usual.crop_padding);
                self.flip.get_or_insert(usual.flip);
                self.cutout.get_or_insert(usual.cutout.into());
                if self.data == DataName::Cifar100 {
                    self.labels.get_or_insert(LabelsSetting::Fine);
                }
            }
            DataName::ImageNet => {
                let size = *self.image_size.get_or_insert(224);
                // 256 for 224.
                let resize = size.saturating_mul(8) / 7;
                self.resize.get_or_insert(resize.min(Loading::LARGEST));
                self.interpolation
                    .get_or_insert(InterpolationSetting::Bilinear);
                self.crop_area.get_or_insert(0.08);
                self.flip.get_or_insert(true);
                self.color_jitter.get_or_insert(0.0);
                self.rand_augment.get_or_insert(0);
                self.magnitude.get_or_insert(9);
                self.cutout.get_or_insert(0);
                self.mixup.get_or_insert(0.0);
                self.skip.get_or_insert(10);
                self.loaders.get_or_insert(0);
            }
            DataName::Text => {
                self.held_out.get_or_insert(0.1);
            }
        }
    }

    /// The side of its images.
    pub fn image_size(&self) -> usize {
        self.image_size.unwrap_or(32) as usize
    }

    /// How many training samples there are, if all are there.
    pub fn usual_samples(&self) -> usize {
        match self.data {
            DataName::Digits => 1437,
            DataName::Cifar10 | DataName::Cifar100 => 50_000,
            DataName::ImageNet => 1_281_167,
            DataName::Text => 10_000,
        }
    }

    /// How many classes there are, if all data are there.
    pub fn usual_classes(&self) -> usize {
        match (self.data, self.cifar_labels()) {
            (_, Some(labels)) => labels.classes(),
            (DataName::ImageNet, None) => 1000,
            (_, None) => self.digits().names().len(),
        }
    }

    /// What CIFAR's labels are; none if it is not CIFAR that is trained on.
    pub fn cifar_labels(&self) -> Option<CifarLabels> {
        match (self.data, self.labels) {
            (DataName::Cifar10, _) => Some(CifarLabels::Cifar10),
            (DataName::Cifar100, Some(LabelsSetting::Coarse)) => Some(CifarLabels::Cifar100Coarse),
            (DataName::Cifar100, _) => Some(CifarLabels::Cifar100Fine),
            _ => None,
        }
    }

    /// The data set as flags call it.
    pub fn name(&self) -> String {
        let value = self.data.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether these are the same data, loaded the same way, wherever they lie and however many threads load them.
    pub fn is_same_but_for_place(&self, other: &Self) -> bool {
        let placed = |settings: &Self| Self {
            data_dir: None,
            val_labels: None,
            text: None,
            tokenizer: None,
            loaders: None,
            skip: None,
            ..settings.clone()
        };
        placed(self) == placed(other)
    }

    /// Whether all that is needed to load it is known.
    pub fn is_named(&self) -> bool {
        self.data_dir.is_some() || matches!(self.data, DataName::Digits | DataName::Text)
    }

    fn folder(&self) -> Result<&Path, CliError> {
        let what = match self.data {
            DataName::ImageNet => {
                "a folder with train and val, each with a folder for each class, or with class folders alone"
            }
            _ => {
                "the folder that the archive unpacks to, \
                 the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"
            }
        };
        let folder = self.data_dir.as_deref();
        folder.ok_or_else(|| CliError::NoDataFolder {
            data: self.name(),
            what,
        })
    }

    /// CIFAR's training images as they are.
    pub fn cifar_images(&self, labels: CifarLabels) -> Result<Cifar, CliError> {
        Ok(Cifar::train(labels, self.folder()?)?)
    }

    /// The batcher of CIFAR's training images in an epoch.
    fn cifar_batcher(&self, seed: u64, epoch: usize) -> CifarBatcher {
        let usual = CifarAugmentation::default();
        let cutout = self.cutout.and_then(|side| side.try_into().ok());
        let augmentation = CifarAugmentation {
            crop_padding: self.crop_padding.unwrap_or(usual.crop_padding),
            flip: self.flip.unwrap_or(usual.flip),
            cutout: cutout.unwrap_or(usual.cutout),
        };
        CifarBatcher::augmented(augmentation, seed, epoch)
    }
}
