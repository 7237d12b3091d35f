//! Batches: the same for any number of workers, normalised, mixed, and without what cannot be decoded.

use std::{fs, path::Path};

use crate::folder::{jpeg, write};
use burn::tensor::Device;
use stovepipe_imagenet::{
    Augmentation, ColorJitter, Evaluation, ImageBatch, ImageFolder, ImagenetError, Images,
    IndexCache, Loading, Normalisation, RandAugment, RandomResizedCrop,
};
use tempfile::{TempDir, tempdir};

const SIZE: usize = 16;

/// Three classes, eight images each, of different sizes.
fn data() -> TempDir {
    let data = tempdir().unwrap();
    for image in 0..24_u8 {
        let name = format!(
            "{}/{image:02}.jpg",
            ["ant", "bee", "cow"][usize::from(image / 8)]
        );
        write(
            data.path(),
            &[(
                &name,
                &jpeg(20 + u32::from(image), 40 - u32::from(image), image),
            )],
        );
    }
    data
}

fn small() -> Loading {
    Loading {
        size: SIZE as u32,
        evaluation: Evaluation {
            resize: 18,
            ..Evaluation::default()
        },
        ..Loading::default()
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

fn all(batches: impl Iterator<Item = Result<ImageBatch, ImagenetError>>) -> Vec<ImageBatch> {
    batches.map(Result::unwrap).collect()
}

#[test]
fn batches_are_the_same_for_any_number_of_workers() {
    let data = data();
    write(data.path(), &[("bee/08.jpg", b"damaged")]);
    let order: Vec<_> = (0..24).map(|place| place * 7 % 24).collect();
    let load = |workers, ahead| {
        let loading = Loading {
            workers,
            ahead,
            augmentation: everything(),
            ..small()
        };
        let images = images(data.path(), loading);
        let train = all(images.train_batches(order.clone(), 5, 42, 3));
        (train, all(images.eval_batches(7)), images.skipped())
    };
    let (train, evaluation, skipped) = load(1, 0);
    assert_eq!(train.iter().map(ImageBatch::len).sum::<usize>(), 23);
    assert_eq!(
        evaluation.iter().map(ImageBatch::len).collect::<Vec<_>>(),
        [7, 6, 7, 3]
    );
    assert_eq!(skipped.len(), 1);
    for (workers, ahead) in [(2, 0), (2, 3), (5, 2), (0, 1)] {
        assert!(load(workers, ahead) == (train.clone(), evaluation.clone(), skipped.clone()));
    }
}

/// The pixels of a sample when it is the only one of its batch.
fn sample(images: &Images, image: usize, seed: u64, epoch: usize) -> Vec<f32> {
    let batch = images
        .train_batches(vec![image], 1, seed, epoch)
        .next()
        .unwrap()
        .unwrap();
    batch.pixels().to_vec()
}

#[test]
fn what_is_drawn_depends_on_seed_epoch_and_sample_alone() {
    let data = data();
    let augmentation = Augmentation {
        mixup: 0.0,
        ..everything()
    };
    let images = images(
        data.path(),
        Loading {
            augmentation,
            ..small()
        },
    );
    let order = vec![9, 3, 17, 3];
    let batches = all(images.train_batches(order.clone(), 3, 1, 2));
    let pixels: Vec<f32> = batches
        .iter()
        .flat_map(|batch| batch.pixels().to_vec())
        .collect();
    let alone: Vec<_> = order
        .iter()
        .map(|&image| sample(&images, image, 1, 2))
        .collect();
    assert_eq!(pixels, alone.concat());
    for (seed, epoch) in [(2, 2), (1, 3)] {
        assert_ne!(sample(&images, 9, seed, epoch), sample(&images, 9, 1, 2));
    }
    // The same picture in two places is shown in two ways.
    let twin = data.path().join("ant/00.jpg");
    fs::copy(twin, data.path().join("cow/16.jpg")).unwrap();
    assert_ne!(sample(&images, 0, 1, 2), sample(&images, 16, 1, 2));
}

/// A PNG of one colour.
fn plain(color: [u8; 3]) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let image = image::RgbImage::from_pixel(30, 20, image::Rgb(color));
    image.write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

#[test]
fn pixels_are_normalised_by_channel() {
    let data = tempdir().unwrap();
    write(
        data.path(),
        &[
            ("a/1.png", &plain([255, 0, 51])),
            ("b/1.png", &plain([0, 0, 0])),
        ],
    );
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
        assert!(
            values
                .iter()
                .all(|value: &f32| (value - expected).abs() < 1e-5),
            "{expected}"
        );
    }
    let (tensor, labels) = batch.clone().into_classes(&Device::default());
    assert_eq!((tensor.dims(), labels.dims()), ([2, 3, SIZE, SIZE], [2]));
    assert_eq!(labels.into_data().iter::<i32>().collect::<Vec<_>>(), [0, 1]);
    let one = loading
        .load(&data.path().join("a/1.png"), &Device::default())
        .unwrap();
    assert_eq!(
        one.into_data().iter::<f32>().collect::<Vec<_>>(),
        batch.pixels()[..3 * plane]
    );
}

#[test]
fn a_flip_mirrors_and_a_hole_is_the_mean_colour() {
    let data = data();
    let crop = RandomResizedCrop {
        area: [1.0, 1.0],
        ratio: [0.01, 100.0],
        ..RandomResizedCrop::default()
    };
    let with = |flip, cutout| {
        let augmentation = Augmentation {
            crop,
            flip,
            cutout,
            ..Augmentation::default()
        };
        images(
            data.path(),
            Loading {
                augmentation,
                ..small()
            },
        )
    };
    let (still, flipping, holed) = (with(false, 0), with(true, 0), with(false, 6));
    let mut flipped = 0;
    for image in 0..24 {
        let plain = sample(&still, image, 5, 0);
        let mirrored: Vec<f32> = plain
            .chunks(SIZE)
            .flat_map(|row| row.iter().rev().copied().collect::<Vec<_>>())
            .collect();
        let found = sample(&flipping, image, 5, 0);
        assert!(found == plain || found == mirrored);
        flipped += usize::from(found == mirrored);
        let found = sample(&holed, image, 5, 0);
        let holes: Vec<_> = (0..found.len())
            .filter(|&place| found[place] != plain[place])
            .collect();
        assert!(holes.iter().all(|&place| found[place] == 0.0));
        let (of_all, of_one) = (
            holes.len(),
            holes.iter().filter(|&&place| place < SIZE * SIZE).count(),
        );
        assert!(
            of_all == 3 * of_one && (9..=36).contains(&of_one),
            "{of_all} {of_one}"
        );
    }
    assert!((5..=19).contains(&flipped), "{flipped}");
}

#[test]
fn mixed_batches_have_shares() {
    let data = data();
    let with = |mixup| {
        let augmentation = Augmentation {
            mixup,
            ..Augmentation::default()
        };
        images(
            data.path(),
            Loading {
                augmentation,
                ..small()
            },
        )
    };
    let order = vec![0, 8, 16, 1];
    let batch = |mixup, epoch| {
        with(mixup)
            .train_batches(order.clone(), 4, 1, epoch)
            .next()
            .unwrap()
            .unwrap()
    };
    let (plain, mixed) = (batch(0.0, 0), batch(0.8, 0));
    assert_eq!(mixed.labels(), [0, 1, 2, 0]);
    let shares = |batch: ImageBatch| batch.into_shares(3, &Device::default()).1.into_data();
    let shares_of = |batch: ImageBatch| shares(batch).iter::<f32>().collect::<Vec<_>>();
    assert_eq!(
        shares_of(plain.clone()),
        [1., 0., 0., 0., 1., 0., 0., 0., 1., 1., 0., 0.]
    );
    let found = shares_of(mixed.clone());
    let lambda = found[4];
    let rest = 1.0 - lambda;
    assert_eq!(
        found,
        [
            1., 0., 0., rest, lambda, 0., 0., rest, lambda, lambda, 0., rest
        ]
    );
    let length = 3 * SIZE * SIZE;
    for place in 0..4 * length {
        let before = plain.pixels()[(place + 3 * length) % (4 * length)];
        let expected = lambda * plain.pixels()[place] + rest * before;
        assert!((mixed.pixels()[place] - expected).abs() < 1e-5);
    }
    assert_ne!(shares_of(batch(0.8, 1))[4], lambda);
}

#[test]
fn damaged_files_are_skipped_and_counted_up_to_a_number() {
    let data = data();
    let whole = jpeg(40, 30, 1);
    write(
        data.path(),
        &[
            ("ant/00.jpg", b""),
            ("bee/10.jpg", &whole[..whole.len() / 2]),
            ("cow/20.jpg", b"<html>"),
        ],
    );
    let load = |skip, workers| {
        images(
            data.path(),
            Loading {
                skip,
                workers,
                ..small()
            },
        )
    };
    let three = load(3, 2);
    // They count once, however often they are met.
    for epoch in 0..3 {
        let batches = all(three.train_batches((0..24).collect(), 10, 1, epoch));
        assert_eq!(
            batches.iter().map(ImageBatch::len).collect::<Vec<_>>(),
            [9, 9, 3]
        );
    }
    let reasons: Vec<_> = three
        .skipped()
        .into_iter()
        .map(|file| file.reason)
        .collect();
    assert_eq!(reasons.len(), 3);
    assert_eq!(reasons[0], "is empty");
    assert!(reasons[1].contains("cut short"), "{reasons:?}");
    assert!(
        reasons[2].contains("no image of a known kind"),
        "{reasons:?}"
    );

    for workers in [1, 3] {
        let mut batches = load(2, workers).eval_batches(4);
        let sizes: Vec<_> = batches
            .by_ref()
            .map_while(Result::ok)
            .map(|batch| batch.len())
            .collect();
        assert_eq!(sizes, [3, 4, 3, 4, 4]);
        assert!(batches.next().is_none());
        let error = load(2, workers)
            .eval_batches(4)
            .find_map(Result::err)
            .unwrap()
            .to_string();
        assert!(
            error.starts_with("more than 2 files cannot be loaded; the last is"),
            "{error}"
        );
        assert!(error.contains("cow/20.jpg: is no image"), "{error}");
        let error = load(0, workers)
            .eval_batches(4)
            .next()
            .unwrap()
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("ant/00.jpg: is empty"), "{error}");
    }
}

#[test]
fn a_file_that_is_gone_is_skipped_and_a_batch_of_nothing_left_out() {
    let data = data();
    let images = images(data.path(), small());
    for image in 0..8 {
        fs::remove_file(data.path().join(format!("ant/{image:02}.jpg"))).unwrap();
    }
    let sizes: Vec<_> = all(images.eval_batches(4))
        .iter()
        .map(ImageBatch::len)
        .collect();
    assert_eq!(sizes, [4, 4, 4, 4]);
    assert_eq!(images.skipped().len(), 8);
}

#[test]
fn settings_that_cannot_be_are_errors() {
    let data = data();
    let folder = ImageFolder::open(data.path(), &IndexCache::Off).unwrap();
    let augmented = |augmentation| Loading {
        augmentation,
        ..small()
    };
    let crop = |area, ratio| {
        let crop = RandomResizedCrop {
            area,
            ratio,
            ..RandomResizedCrop::default()
        };
        augmented(Augmentation {
            crop,
            ..Augmentation::default()
        })
    };
    let jitter = |jitter| {
        augmented(Augmentation {
            jitter: Some(jitter),
            ..Augmentation::default()
        })
    };
    for loading in [
        Loading { size: 0, ..small() },
        Loading {
            size: 19,
            ..small()
        },
        Loading {
            size: 1 << 20,
            ..small()
        },
        Loading {
            normalisation: Normalisation {
                std: [1.0, 0.0, 1.0],
                ..Normalisation::default()
            },
            ..small()
        },
        crop([0.0, 1.0], [1.0, 1.0]),
        crop([0.5, 0.4], [1.0, 1.0]),
        crop([0.5, 1.5], [1.0, 1.0]),
        crop([0.5, 1.0], [0.0, 1.0]),
        crop([0.5, f64::NAN], [1.0, 1.0]),
        augmented(Augmentation {
            mixup: -1.0,
            ..Augmentation::default()
        }),
        jitter(ColorJitter {
            hue: 0.6,
            ..ColorJitter::default()
        }),
        jitter(ColorJitter {
            contrast: f64::INFINITY,
            ..ColorJitter::default()
        }),
        augmented(Augmentation {
            rand_augment: Some(RandAugment {
                operations: 2,
                magnitude: 31,
            }),
            ..Augmentation::default()
        }),
    ] {
        let error = Images::new(folder.clone(), loading.clone()).unwrap_err();
        assert!(
            matches!(error, ImagenetError::Setting { .. }),
            "{error} {loading:?}"
        );
    }
    let images = Images::new(folder, small()).unwrap();
    let mut batches = images.train_batches(vec![0, 24], 2, 0, 0);
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert_eq!(
        error,
        "an image of the order cannot be 24: there are not so many"
    );
    assert!(batches.next().is_none());
    assert_eq!(images.train_batches(vec![], 2, 0, 0).count(), 0);
}

#[test]
fn dropping_batches_early_ends_their_workers() {
    let data = data();
    let images = images(
        data.path(),
        Loading {
            workers: 3,
            ..small()
        },
    );
    for _ in 0..20 {
        let mut batches = images.train_batches((0..24).collect(), 2, 0, 0);
        assert!(batches.next().unwrap().is_ok());
    }
    fn check<T: Send + 'static>(_: T) {}
    check(images.eval_batches(1));
}

/// Where all of a side is shown, 450 / 224 · 224 is a little more than 450.
#[test]
fn images_of_any_size_are_shown_whole() {
    let data = tempdir().unwrap();
    for side in [29, 225, 450] {
        write(
            data.path(),
            &[(&format!("{side}/1.jpg"), &jpeg(side, side, 1))],
        );
    }
    let evaluation = Evaluation {
        resize: 224,
        ..Evaluation::default()
    };
    let loading = Loading {
        evaluation,
        skip: 0,
        ..Loading::default()
    };
    let images = images(data.path(), loading);
    assert_eq!(all(images.eval_batches(3))[0].len(), 3);
}

/// Something else under the name of an image: to open a pipe would be to wait for its other end.
#[cfg(unix)]
#[test]
fn a_pipe_is_skipped_and_not_waited_for() {
    let data = data();
    fs::create_dir(data.path().join("bee/folder.jpg")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .args(["bee/pipe.jpg", "bee/later.jpg"].map(|name| data.path().join(name)))
        .status()
        .unwrap();
    assert!(made.success());
    let images = images(data.path(), small());
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let count = images.eval_batches(30).map(|batch| batch.unwrap().len());
        let _ = done.send((count.sum::<usize>(), images.skipped()));
    });
    // Long enough for any machine; it is over as soon as they are loaded.
    let loaded = told.recv_timeout(std::time::Duration::from_secs(60));
    let (count, skipped) = loaded.unwrap();
    assert_eq!((count, skipped.len()), (24, 2));
    assert!(skipped.iter().all(|file| file.reason.contains("a pipe")));
}
