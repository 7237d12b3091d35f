//! Batches: independent of the number of workers, normalised, mixed, and without damaged files.

use std::{fs, path::Path};

use crate::folder::{jpeg, write};
use burn::tensor::Device;
use stovepipe_imagenet::{
    Augmentation, ColorJitter, FolderSettings, ImageBatch, ImageFolder, ImageSets, ImagenetError,
    Images, IndexCache, Loading, Normalisation, RandAugment,
};
use tempfile::{TempDir, tempdir};

const SIZE: usize = 16;

/// Three classes with eight images each, of different sizes.
fn data() -> TempDir {
    let data = tempdir().unwrap();
    for image in 0..24 {
        let class = ["ant", "bee", "cow"][image as usize / 8];
        let name = format!("{class}/{image:02}.jpg");
        let file = jpeg(20 + image, 40 - image, image as u8);
        write(data.path(), &[(&name, &file)]);
    }
    data
}

fn small() -> Loading {
    let mut loading = Loading::default();
    (loading.size, loading.evaluation.resize) = (SIZE as u32, 18);
    loading
}

fn augmented(augmentation: Augmentation) -> Loading {
    Loading {
        augmentation,
        ..small()
    }
}

fn images(data: &Path, loading: Loading) -> Images {
    Images::new(ImageFolder::open(data, &IndexCache::Off).unwrap(), loading).unwrap()
}

fn everything() -> Augmentation {
    Augmentation {
        jitter: Some(ColorJitter::default()),
        rand_augment: Some(RandAugment::default()),
        cutout: 5,
        mixup: 0.4,
        ..Augmentation::default()
    }
}

fn sizes(batches: &[ImageBatch]) -> Vec<usize> {
    batches.iter().map(ImageBatch::len).collect()
}

fn all(batches: impl Iterator<Item = Result<ImageBatch, ImagenetError>>) -> Vec<ImageBatch> {
    batches.map(Result::unwrap).collect()
}

#[test]
fn batches_are_the_same_for_any_number_of_workers() {
    let data = data();
    write(data.path(), &[("bee/08.jpg", b"damaged")]);
    let order: Vec<_> = (0..24).map(|place| place * 7 % 24).collect();
    let load = |workers, ahead| {
        let mut loading = augmented(everything());
        (loading.workers, loading.ahead) = (workers, ahead);
        let images = images(data.path(), loading);
        let train = all(images.train_batches(order.clone(), 5, 42, 3));
        (train, all(images.eval_batches(7)), images.skipped())
    };
    let (train, evaluation, skipped) = load(1, 0);
    assert_eq!(sizes(&train).into_iter().sum::<usize>(), 23);
    assert_eq!(sizes(&evaluation), [7, 6, 7, 3]);
    assert_eq!(skipped.len(), 1);
    for (workers, ahead) in [(2, 0), (2, 3), (5, 2), (0, 1)] {
        assert!(load(workers, ahead) == (train.clone(), evaluation.clone(), skipped.clone()));
    }
}

fn sample(images: &Images, image: usize, seed: u64, epoch: usize) -> Vec<f32> {
    let mut batches = images.train_batches(vec![image], 1, seed, epoch);
    batches.next().unwrap().unwrap().pixels().to_vec()
}

#[test]
fn augmentation_depends_only_on_seed_epoch_and_sample() {
    let data = data();
    let mixup = 0.0;
    let unmixed = Augmentation {
        mixup,
        ..everything()
    };
    let images = images(data.path(), augmented(unmixed));
    let order = vec![9, 3, 17, 3];
    let batches = all(images.train_batches(order.clone(), 3, 1, 2));
    let pixels: Vec<_> = batches.iter().map(ImageBatch::pixels).collect();
    let alone = order.iter().map(|&image| sample(&images, image, 1, 2));
    assert_eq!(pixels.concat(), alone.collect::<Vec<_>>().concat());
    for (seed, epoch) in [(2, 2), (1, 3)] {
        assert_ne!(sample(&images, 9, seed, epoch), sample(&images, 9, 1, 2));
    }
    // Two equal files are augmented differently.
    let twin = data.path().join("ant/00.jpg");
    fs::copy(twin, data.path().join("cow/16.jpg")).unwrap();
    assert_ne!(sample(&images, 0, 1, 2), sample(&images, 16, 1, 2));
}

fn plain(color: [u8; 3]) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let image = image::RgbImage::from_pixel(30, 20, image::Rgb(color));
    image.write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

#[test]
fn pixels_are_normalised_by_channel() {
    let data = tempdir().unwrap();
    let (a, b) = (plain([255, 0, 51]), plain([0, 0, 0]));
    write(data.path(), &[("a/1.png", &a), ("b/1.png", &b)]);
    let normalisation = Normalisation {
        mean: [0.5, 0.25, 0.1],
        std: [0.5, 0.25, 0.05],
    };
    let loading = Loading {
        normalisation,
        ..small()
    };
    let images = images(data.path(), loading.clone());
    let batch = images.eval_batches(2).next().unwrap().unwrap();
    let plane = SIZE * SIZE;
    for (channel, expected) in [1.0, -1.0, 2.0].into_iter().enumerate() {
        let values = &batch.pixels()[channel * plane..][..plane];
        let is_close = |value: &f32| (value - expected).abs() < 1e-5;
        assert!(values.iter().all(is_close), "{expected}");
    }
    let (tensor, labels) = batch.clone().into_classes(&Device::default());
    assert_eq!((tensor.dims(), labels.dims()), ([2, 3, SIZE, SIZE], [2]));
    assert!(labels.into_data().iter::<i32>().eq([0, 1]));
    let one = loading.load(&data.path().join("a/1.png"), &Device::default());
    let one: Vec<_> = one.unwrap().into_data().iter::<f32>().collect();
    assert_eq!(one, batch.pixels()[..3 * plane]);
}

#[test]
fn flip_and_cutout() {
    let data = data();
    let with = |flip, cutout| {
        let mut loading = small();
        let change = &mut loading.augmentation;
        (change.flip, change.cutout) = (flip, cutout);
        (change.crop.area, change.crop.ratio) = ([1.0, 1.0], [0.01, 100.0]);
        images(data.path(), loading)
    };
    let (still, flipping, cutting) = (with(false, 0), with(true, 0), with(false, 6));
    let mut flipped = 0;
    for image in 0..24 {
        let plain = sample(&still, image, 5, 0);
        let rows = plain.chunks(SIZE);
        let mirrored: Vec<f32> = rows.flat_map(|row| row.iter().rev().copied()).collect();
        let found = sample(&flipping, image, 5, 0);
        assert!(found == plain || found == mirrored);
        flipped += usize::from(found == mirrored);
        let found = sample(&cutting, image, 5, 0);
        let is_cut = |place: &usize| found[*place] != plain[*place];
        let cut: Vec<_> = (0..found.len()).filter(is_cut).collect();
        assert!(cut.iter().all(|&place| found[place] == 0.0));
        let of_one = cut.iter().filter(|&&place| place < SIZE * SIZE).count();
        assert_eq!(cut.len(), 3 * of_one);
        assert!((9..=36).contains(&of_one), "{of_one}");
    }
    assert!((5..=19).contains(&flipped), "{flipped}");
}

#[test]
fn mixed_batches_have_shares() {
    let data = data();
    let batch = |mixup, epoch| {
        let mut loading = small();
        loading.augmentation.mixup = mixup;
        let images = images(data.path(), loading);
        let mut batches = images.train_batches(vec![0, 8, 16, 1], 4, 1, epoch);
        batches.next().unwrap().unwrap()
    };
    let (plain, mixed) = (batch(0.0, 0), batch(0.8, 0));
    assert_eq!(mixed.labels(), [0, 1, 2, 0]);
    let shares = |batch: ImageBatch| batch.into_shares(3, &Device::default()).1.into_data();
    let shares_of = |batch: ImageBatch| shares(batch).iter::<f32>().collect::<Vec<_>>();
    let own = [1., 0., 0., 0., 1., 0., 0., 0., 1., 1., 0., 0.];
    assert_eq!(shares_of(plain.clone()), own);
    let found = shares_of(mixed.clone());
    let lambda = found[4];
    let rest = 1.0 - lambda;
    let first = [1., 0., 0., rest, lambda, 0.];
    let last = [0., rest, lambda, lambda, 0., rest];
    assert_eq!(found, [first, last].concat());
    let length = 3 * SIZE * SIZE;
    for place in 0..4 * length {
        let before = plain.pixels()[(place + 3 * length) % (4 * length)];
        let expected = lambda * plain.pixels()[place] + rest * before;
        assert!((mixed.pixels()[place] - expected).abs() < 1e-5);
    }
    assert_ne!(shares_of(batch(0.8, 1))[4], lambda);
}

#[test]
fn a_limited_number_of_damaged_files_is_skipped() {
    let data = data();
    let whole = jpeg(40, 30, 1);
    let half = &whole[..whole.len() / 2];
    write(data.path(), &[("ant/00.jpg", b""), ("bee/10.jpg", half)]);
    write(data.path(), &[("cow/20.jpg", b"<html>")]);
    let load = |skip, workers| {
        let mut loading = small();
        (loading.skip, loading.workers) = (skip, workers);
        images(data.path(), loading)
    };
    let three = load(3, 2);
    // Each file counts once.
    for epoch in 0..3 {
        let batches = all(three.train_batches((0..24).collect(), 10, 1, epoch));
        assert_eq!(sizes(&batches), [9, 9, 3]);
    }
    let skipped = three.skipped().into_iter();
    let reasons: Vec<_> = skipped.map(|file| file.reason).collect();
    assert_eq!(reasons.len(), 3);
    assert_eq!(reasons[0], "is empty");
    assert!(reasons[1].contains("truncated"), "{reasons:?}");
    assert!(reasons[2].starts_with("is not an image of"), "{reasons:?}");

    for workers in [1, 3] {
        let mut batches = load(2, workers).eval_batches(4);
        let loaded: Vec<_> = batches.by_ref().map_while(Result::ok).collect();
        assert_eq!(sizes(&loaded), [3, 4, 3, 4, 4]);
        assert!(batches.next().is_none());
        let error = load(2, workers).eval_batches(4).find_map(Result::err);
        let error = error.unwrap().to_string();
        let expected = "more than 2 files cannot be loaded; the last is";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains("cow/20.jpg: is not an image"), "{error}");
        let error = load(0, workers).eval_batches(4).next().unwrap();
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("ant/00.jpg: is empty"), "{error}");
    }
}

#[test]
fn skipped_files_of_two_sets_are_counted_together() {
    let data = tempdir().unwrap();
    for image in 0..9 {
        let name = format!("{}/{image}.jpg", ["cat", "dog"][image % 2]);
        write(data.path(), &[(&name, b"no image")]);
    }
    let cache = IndexCache::Off;
    let settings = FolderSettings {
        cache,
        ..FolderSettings::default()
    };
    let sets = ImageSets::open(data.path(), &settings).unwrap();
    let train = Images::new(sets.train, Loading::default()).unwrap();
    let validation = Images::new(sets.validation, Loading::default()).unwrap();
    let validation = validation.counted_with(&train);
    assert_eq!(train.eval_batches(4).count(), 0);
    assert_eq!(validation.eval_batches(4).count(), 0);
    assert_eq!(validation.skipped().len(), 9);
}

#[test]
fn missing_files_and_empty_batches_are_skipped() {
    let data = data();
    let images = images(data.path(), small());
    for image in 0..8 {
        fs::remove_file(data.path().join(format!("ant/{image:02}.jpg"))).unwrap();
    }
    assert_eq!(sizes(&all(images.eval_batches(4))), [4, 4, 4, 4]);
    assert_eq!(images.skipped().len(), 8);
}

#[test]
fn settings_out_of_range_are_errors() {
    let data = data();
    let folder = ImageFolder::open(data.path(), &IndexCache::Off).unwrap();
    let change = |change: &dyn Fn(&mut Loading)| {
        let mut loading = small();
        change(&mut loading);
        let error = Images::new(folder.clone(), loading.clone()).unwrap_err();
        let is_setting = matches!(error, ImagenetError::Setting { .. });
        assert!(is_setting, "{error} {loading:?}");
    };
    for size in [0, 19, 1 << 20] {
        change(&|loading| loading.size = size);
    }
    change(&|loading| loading.normalisation.std = [1.0, 0.0, 1.0]);
    for (area, ratio) in [
        ([0.0, 1.0], [1.0, 1.0]),
        ([0.5, 0.4], [1.0, 1.0]),
        ([0.5, 1.5], [1.0, 1.0]),
        ([0.5, 1.0], [0.0, 1.0]),
        ([0.5, f64::NAN], [1.0, 1.0]),
    ] {
        change(&|loading| {
            let crop = &mut loading.augmentation.crop;
            (crop.area, crop.ratio) = (area, ratio);
        });
    }
    change(&|loading| loading.augmentation.mixup = -1.0);
    for (hue, contrast) in [(0.6, 0.4), (0.1, f64::INFINITY)] {
        let mut jitter = ColorJitter::default();
        (jitter.hue, jitter.contrast) = (hue, contrast);
        change(&|loading| loading.augmentation.jitter = Some(jitter));
    }
    let mut augment = RandAugment::default();
    (augment.operations, augment.magnitude) = (2, 31);
    change(&|loading| loading.augmentation.rand_augment = Some(augment));
    let images = Images::new(folder, small()).unwrap();
    let mut batches = images.train_batches(vec![0, 24], 2, 0, 0);
    let error = batches.next().unwrap().unwrap_err().to_string();
    let expected = "an image of the order cannot be 24: it must be less than the number of images";
    assert_eq!(error, expected);
    assert!(batches.next().is_none());
    assert_eq!(images.train_batches(vec![], 2, 0, 0).count(), 0);
}

#[test]
fn dropping_batches_early_stops_the_workers() {
    let data = data();
    let workers = 3;
    let images = images(data.path(), Loading { workers, ..small() });
    for _ in 0..20 {
        let mut batches = images.train_batches((0..24).collect(), 2, 0, 0);
        assert!(batches.next().unwrap().is_ok());
    }
    fn check<T: Send + 'static>(_: T) {}
    check(images.eval_batches(1));
}

/// In floating point, 450 / 224 · 224 is a little more than 450.
#[test]
fn images_of_any_size_are_loaded() {
    let data = tempdir().unwrap();
    for side in [29, 225, 450] {
        let (name, file) = (format!("{side}/1.jpg"), jpeg(side, side, 1));
        write(data.path(), &[(&name, &file)]);
    }
    let mut loading = Loading::default();
    (loading.evaluation.resize, loading.skip) = (224, 0);
    let images = images(data.path(), loading);
    assert_eq!(all(images.eval_batches(3))[0].len(), 3);
}

/// Opening a pipe would wait for a writer.
#[cfg(unix)]
#[test]
fn pipes_and_folders_are_skipped() {
    let data = data();
    fs::create_dir(data.path().join("bee/folder.jpg")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .args(["bee/pipe.jpg", "bee/later.jpg"].map(|name| data.path().join(name)))
        .status()
        .unwrap();
    assert!(made.success());
    let images = images(data.path(), small());
    let (done, loaded) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let count = images.eval_batches(30).map(|batch| batch.unwrap().len());
        let _ = done.send((count.sum::<usize>(), images.skipped()));
    });
    let loaded = loaded.recv_timeout(std::time::Duration::from_secs(60));
    let (count, skipped) = loaded.unwrap();
    assert_eq!((count, skipped.len()), (24, 2));
    assert!(skipped.iter().all(|file| file.reason.contains("a pipe")));
}
