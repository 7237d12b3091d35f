//! Data sets of images, as one kind of source.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use burn::tensor::{Device, Int, Tensor};
use stovepipe::{
    pipeline::Batch,
    train::{Batches, Data, Pass, Source, TrainError, data::shuffled},
};
use stovepipe_cifar::{Cifar, CifarBatcher};
use stovepipe_digits::DigitBatcher;
use stovepipe_imagenet::{
    Augmentation, ColorJitter, Decoding, EvalTransform, FolderSettings, ImageBatch,
    ImageSets as Folders, Images, Interpolation, Loading, Normalisation, RandAugment,
    RandomResizedCrop, SkippedFile,
};

use super::{DataName, DataSettings, InterpolationSetting, Labels};
use crate::{error::CliError, output};

/// The brightest pixel of a digit.
const DIGIT_WHITE: f32 = 16.0;

/// Images to train on and to test with, and the names of their classes.
pub struct ImageSets {
    pub source: Rc<dyn Source<Tensor<4>, Labels>>,
    pub classes: Vec<String>,
    /// Those of the test set.
    pub names: ImageNames,
}

/// What each image of a set is called, given its place among those that are shown.
pub type ImageNames = Box<dyn Fn(usize) -> String>;

impl ImageSets {
    /// The images that the settings name.
    pub fn load(settings: &DataSettings, seed: u64) -> Result<Self, CliError> {
        match (settings.data, settings.cifar_labels()) {
            (_, Some(labels)) => {
                let folder = settings.folder()?;
                let (train, test) = (Cifar::train(labels, folder)?, Cifar::test(labels, folder)?);
                let own = settings.clone();
                let of_epoch = move |epoch| own.cifar_batcher(seed, epoch);
                let data = Data::augmented(train, test, of_epoch, CifarBatcher::default());
                Ok(Self {
                    source: Rc::new(Labelled(data)),
                    names: Box::new(numbered),
                    classes: labels.names().iter().map(|&name| name.to_owned()).collect(),
                })
            }
            (DataName::ImageNet, None) => Self::folders(settings),
            (_, None) => {
                let (train, test) = settings.digit_sets(seed)?;
                Ok(Self {
                    source: Rc::new(Labelled(Data::new(train, test, DigitBatcher))),
                    classes: settings.digits().names(),
                    names: Box::new(numbered),
                })
            }
        }
    }

    fn folders(settings: &DataSettings) -> Result<Self, CliError> {
        let folder = settings.folder()?;
        let folders = Folders::open(
            folder,
            &FolderSettings {
                labels: settings.val_labels.clone(),
                validation: settings.held_out_share(),
                ..FolderSettings::default()
            },
        )?;
        if settings.val_share.is_some() && folders.held_out.is_none() {
            return Err(CliError::NothingHeldOut {
                test: folders.validation.root().to_owned(),
            });
        }
        eprintln!("{}: {}", folder.display(), found(&folders));
        let classes = folders.train.classes().to_vec();
        let pictures = Pictures::new(folders, settings.loading())?;
        let test = pictures.test.clone();
        Ok(Self {
            source: Rc::new(pictures),
            classes,
            names: Box::new(move |place| {
                shown(&test, place).map_or_else(String::new, |file| file.display().to_string())
            }),
        })
    }
}

/// What an image without a file is called.
fn numbered(place: usize) -> String {
    format!("test image {}", place + 1)
}

/// The file of an image, given its place among those that were shown: all but those skipped.
fn shown(images: &Images, place: usize) -> Option<PathBuf> {
    let skipped = images.skipped();
    let is_shown = |path: &PathBuf| skipped.iter().all(|file| file.path != *path);
    let folder = images.folder();
    let files = (0..folder.len()).map(|index| folder.path(index));
    files.filter(is_shown).nth(place)
}

/// What a folder turned out to hold: a layout that was taken for another would show here.
fn found(folders: &Folders) -> String {
    let classes = output::count(folders.train.classes().len(), "class", "classes");
    let train = output::count(folders.train.len(), "image", "images");
    let test = folders.validation.len();
    match folders.held_out {
        Some(share) => {
            format!(
                "{classes}, {train} to train on, {test} held out to test with (a share of {share})"
            )
        }
        None => {
            let from = folders.validation.root().display();
            format!("{classes}, {train} to train on, {test} to test with from {from}")
        }
    }
}

/// A set whose images have a class each.
struct Labelled<S>(S);

impl<S: Source<Tensor<4>, Tensor<1, Int>>> Source<Tensor<4>, Labels> for Labelled<S> {
    fn training_samples(&self) -> usize {
        self.0.training_samples()
    }

    fn test_samples(&self) -> usize {
        self.0.test_samples()
    }

    fn train(&self, pass: Pass) -> Batches<Tensor<4>, Labels> {
        self.train_from(0, pass)
    }

    fn train_from(&self, first: usize, pass: Pass) -> Batches<Tensor<4>, Labels> {
        Box::new(self.0.train_from(first, pass).map(labelled))
    }

    fn test(&self, batch_size: usize) -> Batches<Tensor<4>, Labels> {
        Box::new(self.0.test(batch_size).map(labelled))
    }
}

fn labelled(
    batch: Result<Batch<Tensor<4>, Tensor<1, Int>>, TrainError>,
) -> Result<Batch<Tensor<4>, Labels>, TrainError> {
    batch.map(|batch| (batch.input, Labels::Classes(batch.target)).into())
}

/// Folders of pictures.
struct Pictures {
    train: Images,
    test: Images,
    classes: usize,
    /// Skipped files that were told of.
    told: Arc<Mutex<usize>>,
}

impl Pictures {
    fn new(folders: Folders, loading: Loading) -> Result<Self, CliError> {
        let classes = folders.train.classes().len();
        let train = Images::new(folders.train, loading.clone())?;
        let test = Images::new(folders.validation, loading)?.counted_with(&train);
        Ok(Self {
            train,
            test,
            classes,
            told: Arc::default(),
        })
    }

    fn told<B>(&self, images: &Images, batches: B) -> Told<B> {
        let (images, told) = (images.clone(), self.told.clone());
        Told {
            images,
            batches,
            told,
        }
    }
}

/// At the end, since what was said on the way is far up by then.
impl Drop for Pictures {
    fn drop(&mut self) {
        let skipped = self.train.skipped().len();
        if skipped > 0 {
            let files = output::count(skipped, "file was", "files were");
            eprintln!("{files} skipped in all");
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

    fn train(&self, pass: Pass) -> Batches<Tensor<4>, Labels> {
        self.train_from(0, pass)
    }

    fn train_from(&self, first: usize, pass: Pass) -> Batches<Tensor<4>, Labels> {
        let order = shuffled(self.train.len(), pass.seed, pass.epoch);
        let (samples, seed, epoch) = (pass.batch_size, pass.seed, pass.epoch);
        let batches = self
            .train
            .train_batches_from(first, order, samples, seed, epoch);
        let is_mixed = self.train.settings().augmentation.mixup > 0.0;
        let classes = is_mixed.then_some(self.classes);
        let batches = self.told(&self.train, batches);
        Box::new(batches.map(move |batch| Ok(tensors(batch?, classes).into())))
    }

    fn test(&self, batch_size: usize) -> Batches<Tensor<4>, Labels> {
        let batches = self.test.eval_batches(batch_size);
        let batches = self.told(&self.test, batches);
        Box::new(batches.map(|batch| Ok(tensors(batch?, None).into())))
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
struct Told<B> {
    images: Images,
    batches: B,
    told: Arc<Mutex<usize>>,
}

impl<B> Told<B> {
    fn tell(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.images.settings().skip;
        for SkippedFile { path, reason } in self.images.skipped_after(*told) {
            *told += 1;
            eprintln!(
                "skipped, {told} of at most {most}: {}: {reason}",
                path.display()
            );
        }
    }
}

impl<B, E> Iterator for Told<B>
where
    B: Iterator<Item = Result<ImageBatch, E>>,
    E: std::fmt::Display,
{
    type Item = Result<ImageBatch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next();
        self.tell();
        Some(batch?.map_err(|error| TrainError::data(error.to_string())))
    }
}

impl DataSettings {
    /// The share of images that is held out where there are class folders alone.
    pub(super) fn held_out_share(&self) -> f64 {
        let usual = FolderSettings::default().validation;
        self.val_share.unwrap_or(usual)
    }

    /// How pictures are loaded.
    pub(super) fn loading(&self) -> Loading {
        let interpolation = match self.interpolation {
            Some(InterpolationSetting::Bicubic) => Interpolation::Bicubic,
            _ => Interpolation::Bilinear,
        };
        let usual = RandomResizedCrop::default();
        // What is below 0 or no number stays, to be refused.
        let jitter = self.color_jitter.filter(|&strength| strength != 0.0);
        let operations = self.rand_augment.filter(|&operations| operations > 0);
        Loading {
            size: self.image_size.unwrap_or(224),
            augmentation: Augmentation {
                crop: RandomResizedCrop {
                    area: [self.crop_area.unwrap_or(usual.area[0]), usual.area[1]],
                    interpolation,
                    ..usual
                },
                flip: self.flip.unwrap_or(true),
                jitter: jitter.map(|strength| ColorJitter {
                    brightness: strength,
                    contrast: strength,
                    saturation: strength,
                    hue: (strength / 4.0).min(0.5),
                }),
                rand_augment: operations.map(|operations| RandAugment {
                    operations,
                    magnitude: self.magnitude.unwrap_or(9),
                }),
                cutout: self.cutout.unwrap_or(0).into(),
                mixup: self.mixup.unwrap_or(0.0),
            },
            evaluation: EvalTransform {
                resize: self.resize.unwrap_or(256),
                interpolation,
            },
            decoding: Decoding::default(),
            workers: self.loaders.unwrap_or(0),
            skip: self.skip.unwrap_or(10),
            ..Loading::default()
        }
    }

    /// How a picture from anywhere is shown to a model that was trained on this data set.
    pub fn showing(&self) -> Loading {
        if self.data == DataName::ImageNet {
            return self.loading();
        }
        let normalisation = match self.cifar_labels() {
            Some(labels) => Normalisation {
                mean: labels.mean(),
                std: labels.std(),
            },
            None => Normalisation {
                mean: [stovepipe_digits::MEAN / DIGIT_WHITE; 3],
                std: [stovepipe_digits::STD / DIGIT_WHITE; 3],
            },
        };
        Loading {
            size: 32,
            evaluation: EvalTransform {
                resize: 32,
                ..EvalTransform::default()
            },
            normalisation,
            ..Loading::default()
        }
    }
}

/// A picture from anywhere as a model that was trained on a data set sees it: its shorter side resized, its middle
/// cropped, normalised.
pub fn load_picture(settings: &DataSettings, path: &Path) -> Result<Tensor<4>, CliError> {
    Ok(settings.showing().load(path, &Device::flex())?)
}
