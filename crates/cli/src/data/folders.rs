//! Folders of pictures: ImageNet, or any folder of class folders.

use std::{
    cell::OnceCell,
    path::PathBuf,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use burn::tensor::{Device, Int, Tensor};
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe::{
    schedule::count,
    train::{
        Batches, EpochPass, Source, TrainError,
        data::{Fingerprint, shuffled},
    },
};
use stovepipe_imagenet::{
    Augmentation, ColorJitter, Decoding, EvalTransform, FolderSettings, ImageBatch,
    ImageSets as Opened, Images, Interpolation, Loading, RandAugment, RandomResizedCrop,
    SkippedFile,
};

use super::{
    data_set::{Contents, DataSet, ImageData, check},
    fingerprint::{fingerprint, of_classes},
    images::{ImageSets, Labels, found},
};
use crate::{
    choice::Configurable,
    error::{CliError, usage},
    output,
};

/// More would be a mistake: threads that load, and operations, each a pass over the image.
const MOST_LOADERS: usize = 1024;
const MOST_OPERATIONS: usize = 100;

/// What the folder has to hold.
const FOLDER: &str = "a folder with train and val, each with a folder for each class, or with \
                      class folders alone";

/// ImageNet, or any other folder of class folders, from --data-dir
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Folders {
    /// Folder with train and val, which hold class folders, or with class folders alone
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Labels of validation images that lie in one folder [default: a file beside it]
    #[arg(long, value_name = "FILE")]
    val_labels: Option<PathBuf>,
    /// Share of the images kept for testing, where there are class folders alone [default: 0.2]
    #[arg(long, value_name = "SHARE")]
    val_share: Option<f64>,
    /// Side that images are cropped to, in pixels
    #[arg(long, value_name = "N", default_value_t = 224)]
    image_size: u32,
    /// Length that the shorter side of a test image is resized to; if not given, 8/7 of the image size
    #[arg(long, value_name = "N")]
    resize: Option<u32>,
    /// How images are resized
    #[arg(long, value_enum, default_value_t = InterpolationSetting::Bilinear)]
    interpolation: InterpolationSetting,
    /// Smallest share of a training image's area that a random crop takes
    #[arg(long, value_name = "SHARE", default_value_t = RandomResizedCrop::default().area[0])]
    crop_area: f64,
    /// Whether half of the training images are mirrored
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    flip: bool,
    /// Strength of random changes of brightness, contrast, saturation and hue; 0 for none
    #[arg(long, value_name = "STRENGTH", default_value_t = 0.0)]
    color_jitter: f64,
    /// Operations of RandAugment on each training image; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    rand_augment: usize,
    /// Magnitude of RandAugment's operations, from 0 to 30
    #[arg(long, value_name = "N", default_value_t = 9)]
    magnitude: usize,
    /// Side of the square cut out of training images; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    cutout: u16,
    /// Images are mixed in pairs, by shares from Beta(ALPHA, ALPHA); 0 for no mixing
    #[arg(long, value_name = "ALPHA", default_value_t = 0.0)]
    mixup: f64,
    /// Files that may be skipped because they are missing, damaged or not images
    #[arg(long, value_name = "N", default_value_t = 10)]
    skip: usize,
    /// Threads that load images; 0 for as many as there are cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    loaders: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
enum InterpolationSetting {
    /// Bilinear
    Bilinear,
    /// Bicubic
    Bicubic,
}

impl DataSet for Folders {
    fn contents(&self) -> Contents<'_> {
        Contents::Images(self)
    }

    fn usual_samples(&self) -> usize {
        1_281_167
    }

    fn settle(&mut self) {
        // 256 for 224.
        let resize = self.image_size.saturating_mul(8) / 7;
        self.resize.get_or_insert(resize.min(Loading::LARGEST));
    }

    fn check(&self) -> Result<(), CliError> {
        let (size, largest) = (self.image_size, Loading::LARGEST);
        let share = |share: f64| share > 0.0 && share < 1.0;
        let strength = |strength: f64| strength >= 0.0 && strength.is_finite();
        let area = |area: f64| area > 0.0 && area <= 1.0;
        let sizes = |n| (1..=largest).contains(&n);
        let resized = |n| (size..=largest).contains(&n);
        let (augment, loaders) = (self.rand_augment, self.loaders);
        let operations = |n| n <= MOST_OPERATIONS;
        check("image-size", size, sizes, "from 1 to 16384")?;
        check("resize", self.resize, resized, "from image-size to 16384")?;
        check("crop-area", self.crop_area, area, "above 0 and up to 1")?;
        check("color-jitter", self.color_jitter, strength, "0 or above")?;
        check("rand-augment", augment, operations, "from 0 to 100")?;
        check("magnitude", self.magnitude, |n| n <= 30, "from 0 to 30")?;
        check("mixup", self.mixup, strength, "0 or above")?;
        check("val-share", self.val_share, share, "above 0 and below 1")?;
        check("loaders", loaders, |n| n <= MOST_LOADERS, "from 0 to 1024")?;
        Ok(self.view().check()?)
    }

    fn is_located(&self) -> bool {
        self.data_dir.is_some()
    }

    fn may_change(&self) -> &'static [&'static str] {
        &["data-dir", "val-labels", "loaders", "skip"]
    }
}

impl ImageData for Folders {
    fn image_size(&self) -> usize {
        self.image_size as usize
    }

    fn usual_classes(&self) -> usize {
        1000
    }

    fn load(&self, _: u64) -> Result<ImageSets, CliError> {
        let missing = || usage!("{} needs --data-dir: {FOLDER}", self.name());
        let folder = self.data_dir.as_ref().ok_or_else(missing)?;
        let mut settings = FolderSettings::default();
        settings.labels.clone_from(&self.val_labels);
        settings.validation = self.val_share.unwrap_or(settings.validation);
        let opened = Opened::open(folder, &settings)?;
        if self.val_share.is_some() && opened.held_out.is_none() {
            return Err(usage!(
                "val-share has no use: the images to test with have a folder of their own, {}",
                opened.validation.root().display()
            ));
        }
        let about = format!("{}: {}", folder.display(), about(&opened));
        let classes = opened.train.classes().to_vec();
        let pictures = Pictures::new(opened, self.view())?;
        let test = pictures.test.clone();
        Ok(ImageSets {
            source: Rc::new(pictures),
            classes,
            about,
            names: Box::new(move |place| {
                shown(&test, place).map_or_else(String::new, |file| file.display().to_string())
            }),
        })
    }

    fn first(&self, _: usize) -> Result<(Tensor<4>, Tensor<1, Int>), CliError> {
        let data = self.name();
        Err(usage!(
            "verify takes its images from digits, cifar10 or cifar100, not from {data}"
        ))
    }

    fn view(&self) -> Loading {
        let interpolation = match self.interpolation {
            InterpolationSetting::Bicubic => Interpolation::Bicubic,
            InterpolationSetting::Bilinear => Interpolation::Bilinear,
        };
        let usual = RandomResizedCrop::default();
        // A strength below 0 or NaN stays, and `check` refuses it.
        let jitter = Some(self.color_jitter).filter(|&strength| strength != 0.0);
        let operations = Some(self.rand_augment).filter(|&operations| operations > 0);
        Loading {
            size: self.image_size,
            augmentation: Augmentation {
                crop: RandomResizedCrop {
                    area: [self.crop_area, usual.area[1]],
                    interpolation,
                    ..usual
                },
                flip: self.flip,
                jitter: jitter.map(|strength| ColorJitter {
                    brightness: strength,
                    contrast: strength,
                    saturation: strength,
                    hue: (strength / 4.0).min(0.5),
                }),
                rand_augment: operations.map(|operations| RandAugment {
                    operations,
                    magnitude: self.magnitude,
                }),
                cutout: self.cutout.into(),
                mixup: self.mixup,
            },
            evaluation: EvalTransform {
                resize: self.resize.unwrap_or(256),
                interpolation,
            },
            decoding: Decoding::default(),
            workers: self.loaders,
            skip: self.skip,
            ..Loading::default()
        }
    }
}

/// The file of an image, given its place among those that were shown: all but those skipped.
fn shown(images: &Images, place: usize) -> Option<PathBuf> {
    let skipped = images.skipped();
    let is_shown = |path: &PathBuf| skipped.iter().all(|file| file.path != *path);
    let folder = images.folder();
    let files = (0..folder.len()).map(|index| folder.path(index));
    files.filter(is_shown).nth(place)
}

/// What was found in a folder: shows a layout that was taken for another.
fn about(opened: &Opened) -> String {
    let train = found(opened.train.classes(), opened.train.len());
    let test = opened.validation.len();
    match opened.held_out {
        Some(share) => format!("{train}, {test} kept for testing (a share of {share})"),
        None => {
            let from = opened.validation.root().display();
            format!("{train}, {test} to test with from {from}")
        }
    }
}

struct Pictures {
    train: Images,
    test: Images,
    classes: usize,
    fingerprint: OnceCell<Fingerprint>,
    /// How many skipped files were reported.
    reported: Arc<Mutex<usize>>,
}

impl Pictures {
    fn new(opened: Opened, loading: Loading) -> Result<Self, CliError> {
        let classes = opened.train.classes().len();
        let train = Images::new(opened.train, loading.clone())?;
        let test = Images::new(opened.validation, loading)?.counted_with(&train);
        Ok(Self {
            train,
            test,
            classes,
            fingerprint: OnceCell::new(),
            reported: Arc::default(),
        })
    }
}

/// Repeated at the end, where it is seen.
impl Drop for Pictures {
    fn drop(&mut self) {
        let skipped = self.train.skipped().len();
        if skipped > 0 {
            output::say(&format!("skipped {} in all\n", count(skipped, "file")));
        }
    }
}

impl Source<Tensor<4>, Labels> for Pictures {
    fn training_samples(&self) -> usize {
        self.train.len()
    }

    fn test_samples(&self) -> usize {
        self.test.len()
    }

    fn train(&self, pass: EpochPass) -> Batches<Tensor<4>, Labels> {
        self.train_from(0, pass)
    }

    fn train_from(&self, first: usize, pass: EpochPass) -> Batches<Tensor<4>, Labels> {
        let order = shuffled(self.train.len(), pass.seed, pass.epoch);
        let (samples, seed, epoch) = (pass.batch_size, pass.seed, pass.epoch);
        let batches = (self.train).train_batches_from(first, order, samples, seed, epoch);
        let is_mixed = self.train.settings().augmentation.mixup > 0.0;
        let classes = is_mixed.then_some(self.classes);
        let batches = reporting(self.train.clone(), self.reported.clone(), batches);
        Box::new(batches.map(move |batch| Ok(tensors(batch?, classes).into())))
    }

    fn test(&self, batch_size: usize) -> Batches<Tensor<4>, Labels> {
        let batches = self.test.eval_batches(batch_size);
        let batches = reporting(self.test.clone(), self.reported.clone(), batches);
        Box::new(batches.map(|batch| Ok(tensors(batch?, None).into())))
    }

    fn fingerprint(&self) -> Result<Fingerprint, TrainError> {
        let classes = self.train.folder().classes();
        let of = |set: &'static str, images: &Images| {
            let found = images.folder().fingerprints().into_iter().zip(classes);
            fingerprint(found.map(|((images, hash), class)| {
                let images = count(images, "file");
                (
                    format!("{set} images of {class}"),
                    format!("{images} {hash:016x}"),
                )
            }))
        };
        let found = self.fingerprint.get_or_init(|| {
            let mut all = of_classes(classes);
            all.extend(of("training", &self.train));
            all.extend(of("test", &self.test));
            all
        });
        Ok(found.clone())
    }
}

/// The tensors of a batch, whose images are mixed if the number of their classes is given.
fn tensors(batch: ImageBatch, classes: Option<usize>) -> (Tensor<4>, Labels) {
    let device = Device::flex();
    match classes {
        Some(classes) => {
            let (images, shares) = batch.into_shares(classes, &device);
            (images, Labels::Shares(shares))
        }
        None => {
            let (images, classes) = batch.into_classes(&device);
            (images, Labels::Classes(classes))
        }
    }
}

/// Batches that say which files were skipped, once each.
fn reporting<B, E>(
    images: Images,
    reported: Arc<Mutex<usize>>,
    mut batches: B,
) -> impl Iterator<Item = Result<ImageBatch, TrainError>>
where
    B: Iterator<Item = Result<ImageBatch, E>>,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    std::iter::from_fn(move || {
        let batch = batches.next();
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        let most = images.settings().skip;
        for SkippedFile { path, reason } in images.skipped_after(*reported) {
            *reported += 1;
            let which = format!("{reported} of at most {most}: {}", path.display());
            output::say(&format!("skipped, {which}: {reason}\n"));
        }
        Some(batch?.map_err(TrainError::data))
    })
}
