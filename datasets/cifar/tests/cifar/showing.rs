//! Batches: normalisation, and for training crops, flips and cutout.

use std::collections::HashSet;

use crate::folder::{record, write_cifar10, write_cifar100};
use burn::{
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::Dataset,
    },
    tensor::{DType, Device},
};
use stovepipe_cifar::{Cifar, CifarAugmentation, CifarBatcher, CifarLabels, SHAPE};
use tempfile::tempdir;

const NONE: CifarAugmentation = CifarAugmentation {
    crop_padding: 0,
    flip: false,
    cutout: 0,
};

/// Pixel values that differ between rows, columns and channels; none is black.
fn place(channel: usize, y: usize, x: usize) -> u8 {
    (1 + 70 * channel + 2 * y + (x * x + 3 * y) % 89) as u8
}

/// 100 equal images to train on.
fn train() -> Cifar {
    let data = tempdir().unwrap();
    write_cifar10(data.path(), |_| record(&[3], place).repeat(20));
    Cifar::train(CifarLabels::Cifar10, data.path()).unwrap()
}

fn every() -> Vec<usize> {
    (0..100).collect()
}

fn show(set: &Cifar, batcher: CifarBatcher, places: &[usize]) -> Vec<Vec<f32>> {
    let items = set.get_many(places.to_vec()).unwrap();
    let (images, _) = batcher.batch(items, &Device::default());
    let values = images.into_data().try_to_vec::<f32>().unwrap();
    values.chunks(3072).map(<[f32]>::to_vec).collect()
}

/// Pixels as bytes again; `None` for other values, such as those of cutout.
fn bytes(image: &[f32]) -> Vec<Option<u8>> {
    let (mean, std) = (CifarLabels::Cifar10.mean(), CifarLabels::Cifar10.std());
    let byte = |(index, value): (usize, &f32)| {
        let channel = index / 1024;
        let pixel = 255.0 * (value * std[channel] + mean[channel]);
        ((pixel - pixel.round()).abs() < 1e-3).then_some(pixel.round() as u8)
    };
    image.iter().enumerate().map(byte).collect()
}

/// An image of `pixel(channel, y, x)`.
fn image(pixel: impl Fn(usize, i32, i32) -> u8) -> Vec<Option<u8>> {
    let mut image = Vec::new();
    for channel in 0..3 {
        for y in 0..32 {
            image.extend((0..32).map(|x| Some(pixel(channel, y, x))));
        }
    }
    image
}

/// The crop that begins at row `down` and column `right`.
fn crop(down: i32, right: i32) -> Vec<Option<u8>> {
    image(|channel, y, x| match (y + down, x + right) {
        (y @ 0..32, x @ 0..32) => place(channel, y as usize, x as usize),
        _ => 0,
    })
}

fn crops(padding: i32) -> Vec<Vec<Option<u8>>> {
    let range = || -padding..=padding;
    let rows = range().flat_map(|y| range().map(move |x| crop(y, x)));
    rows.collect()
}

fn mirrored(image: &[Option<u8>]) -> Vec<Option<u8>> {
    let rows = image.chunks(32);
    rows.flat_map(|row| row.iter().rev().copied()).collect()
}

#[test]
fn a_batch_has_its_shape_types_and_labels() {
    let data = tempdir().unwrap();
    let labelled = |label: u8| record(&[label, 99 - label], place);
    write_cifar100(data.path(), |_| (0..20).flat_map(labelled).collect());
    for (labels, expected) in [
        (CifarLabels::Cifar100Coarse, [4, 0, 19]),
        (CifarLabels::Cifar100Fine, [95, 99, 80]),
    ] {
        let test = Cifar::test(labels, data.path()).unwrap();
        let items = test.get_many(vec![4, 0, 19]).unwrap();
        let (images, labels) = CifarBatcher::default().batch(items, &Device::default());
        let [channels, height, width] = SHAPE;
        assert_eq!(images.dims(), [3, channels, height, width]);
        assert_eq!(images.dtype(), DType::F32);
        assert!(labels.dtype().is_int());
        let labels: Vec<_> = labels.into_data().iter::<i64>().collect();
        assert_eq!(labels, expected);
    }
}

/// (pixel / 255 - mean) / std, with rounded figures from papers.
#[test]
fn pixels_are_normalised() {
    let data = tempdir().unwrap();
    let colour = |channel, _, _| [255, 51, 0][channel];
    write_cifar10(data.path(), |_| record(&[0], colour));
    write_cifar100(data.path(), |_| record(&[0, 0], colour));
    for (labels, expected) in [
        // (1 - 0.4914) / 0.2470, (0.2 - 0.4822) / 0.2435, (0 - 0.4465) / 0.2616
        (CifarLabels::Cifar10, [2.0591, -1.1589, -1.7068]),
        // (1 - 0.5071) / 0.2673, (0.2 - 0.4865) / 0.2564, (0 - 0.4409) / 0.2762
        (CifarLabels::Cifar100Fine, [1.8440, -1.1174, -1.5963]),
        (CifarLabels::Cifar100Coarse, [1.8440, -1.1174, -1.5963]),
    ] {
        let test = Cifar::test(labels, data.path()).unwrap();
        let image = &show(&test, CifarBatcher::default(), &[0])[0];
        for (place, value) in image.iter().enumerate() {
            let difference = (value - expected[place / 1024]).abs();
            assert!(difference < 1e-3, "{labels:?}, {place}: {value}");
        }
    }
}

#[test]
fn evaluation_shows_unchanged_images() {
    let set = train();
    let expected = image(|channel, y, x| place(channel, y as usize, x as usize));
    let plain = &show(&set, CifarBatcher::default(), &[7])[0];
    assert_eq!(bytes(plain), expected);
    let without_changes = CifarBatcher::augmented(NONE, 1, 2);
    assert_eq!(show(&set, without_changes, &[7])[0], *plain);
}

#[test]
fn all_crops_occur() {
    let set = train();
    for padding in [1_u8, 2] {
        let mut augmentation = NONE;
        augmentation.crop_padding = padding;
        let shifts = crops(i32::from(padding));
        let mut counts = vec![0; shifts.len()];
        for epoch in 0..6 {
            let batcher = CifarBatcher::augmented(augmentation, 5, epoch);
            for shown in show(&set, batcher, &every()) {
                let bytes = bytes(&shown);
                let shift = shifts.iter().position(|shift| *shift == bytes);
                counts[shift.expect("no shift of the image")] += 1;
            }
        }
        // 600 draws among 9 or 25, within four standard deviations.
        let mean = 600 / shifts.len();
        let fits = |count: &usize| (mean / 4..=2 * mean).contains(count);
        assert!(counts.iter().all(fits), "{counts:?}");
    }
}

#[test]
fn a_crop_may_be_outside_of_the_image() {
    let set = train();
    let mut augmentation = NONE;
    augmentation.crop_padding = 255;
    let black = image(|_, _, _| 0);
    let batcher = CifarBatcher::augmented(augmentation, 0, 0);
    let shown = show(&set, batcher, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(shown.iter().any(|image| bytes(image) == black));
}

#[test]
fn half_of_the_images_are_flipped() {
    let set = train();
    let augmentation = CifarAugmentation { flip: true, ..NONE };
    let plain = crop(0, 0);
    let mirror = mirrored(&plain);
    let mut flipped = 0;
    for epoch in 0..10 {
        let batcher = CifarBatcher::augmented(augmentation, 3, epoch);
        for shown in show(&set, batcher, &every()) {
            let bytes = bytes(&shown);
            assert!(bytes == plain || bytes == mirror);
            flipped += usize::from(bytes == mirror);
        }
    }
    // Of 1,000; the standard deviation is 16.
    assert!((430..=570).contains(&flipped), "{flipped}");
}

/// The crop is flipped, so all four corners may be black.
#[test]
fn crops_and_flips_are_combined() {
    let set = train();
    let mut augmentation = NONE;
    (augmentation.crop_padding, augmentation.flip) = (1, true);
    let shifts = crops(1);
    let flipped: Vec<_> = shifts.iter().map(|image| mirrored(image)).collect();
    let all = [shifts, flipped].concat();
    let mut seen = HashSet::new();
    for epoch in 0..3 {
        let batcher = CifarBatcher::augmented(augmentation, 3, epoch);
        for shown in show(&set, batcher, &every()) {
            let bytes = bytes(&shown);
            let found = all.iter().position(|image| *image == bytes);
            seen.insert(found.expect("no such image"));
        }
    }
    assert_eq!(seen.len(), 18);
}

#[test]
fn cutout_clears_a_square_clipped_at_the_edges() {
    let set = train();
    for side in [1, 7, 16] {
        let mut augmentation = NONE;
        augmentation.cutout = side;
        let side = usize::from(side);
        let plain = show(&set, CifarBatcher::default(), &[0]).remove(0);
        let mut areas = HashSet::new();
        for epoch in 0..5 {
            let batcher = CifarBatcher::augmented(augmentation, 1, epoch);
            for shown in show(&set, batcher, &every()) {
                areas.insert(check_hole(&shown, &plain, side));
            }
        }
        // A whole square, and one whose centre is a corner pixel or close to it.
        assert_eq!(areas.iter().max(), Some(&(side * side)));
        let smallest = *areas.iter().min().unwrap();
        assert!(smallest <= (side * side).div_ceil(2), "{areas:?}");
    }
}

/// The area of the cutout, which must be the same clipped square of zeros in all channels.
fn check_hole(shown: &[f32], plain: &[f32], side: usize) -> usize {
    let pixels = shown.iter().zip(plain);
    let is_cut: Vec<_> = pixels.map(|(shown, plain)| shown != plain).collect();
    assert_eq!(is_cut[..1024], is_cut[1024..2048]);
    assert_eq!(is_cut[..1024], is_cut[2048..]);
    let places: Vec<_> = (0..1024).filter(|&place| is_cut[place]).collect();
    let rows = 1 + places.iter().max().unwrap() / 32 - places.iter().min().unwrap() / 32;
    let columns = || places.iter().map(|place| place % 32);
    let (left, right) = (columns().min().unwrap(), columns().max().unwrap());
    assert_eq!(places.len(), rows * (right + 1 - left), "not a rectangle");
    for (length, touches) in [
        (rows, places[0] < 32 || places.last().unwrap() / 32 == 31),
        (right + 1 - left, left == 0 || right == 31),
    ] {
        // The centre is in the image, so half of a side is too.
        let least = if touches { side / 2 } else { side };
        let range = least.max(1)..=side;
        assert!(range.contains(&length), "{length} of {side}");
    }
    for plane in [0, 1024, 2048] {
        assert!(places.iter().all(|&place| shown[plane + place] == 0.0));
    }
    places.len()
}

const ALL: CifarAugmentation = CifarAugmentation {
    crop_padding: 4,
    flip: true,
    cutout: 8,
};

#[test]
fn samples_are_independent() {
    let set = train();
    let batcher = CifarBatcher::augmented(ALL, 11, 4);
    let whole = show(&set, batcher, &every());
    for size in [1, 7, 32] {
        let order: Vec<_> = (0..100).rev().collect();
        for places in order.chunks(size) {
            for (image, &place) in show(&set, batcher, places).iter().zip(places) {
                assert_eq!(*image, whole[place], "sample {place} in a batch of {size}");
            }
        }
    }
    // On other threads, in another order.
    let loader = DataLoaderBuilder::new(batcher).batch_size(9).shuffle(1);
    let loader = loader.num_workers(3).build(set);
    let mut found = Vec::new();
    for batch in loader.iter() {
        let values = batch.unwrap().0.into_data().try_to_vec::<f32>().unwrap();
        found.extend(values.chunks(3072).map(<[f32]>::to_vec));
    }
    let sorted = |mut images: Vec<Vec<f32>>| {
        images.sort_by(|a, b| a.partial_cmp(b).unwrap());
        images
    };
    assert!(sorted(found) == sorted(whole));
}

#[test]
fn seed_epoch_and_sample_all_matter() {
    let set = train();
    let shown = |seed, epoch| show(&set, CifarBatcher::augmented(ALL, seed, epoch), &every());
    let equal = |a: &[Vec<f32>], b: &[Vec<f32>]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    let first = shown(0, 0);
    assert_eq!(equal(&first, &shown(0, 0)), 100);
    // All images are equal, so differences come from the random changes.
    assert!(equal(&first[..99], &first[1..]) <= 1);
    for (seed, epoch) in [(0, 1), (1, 0), (1, 1), (0, 2), (1 << 32, 0), (0, 1 << 32)] {
        let equal = equal(&first, &shown(seed, epoch));
        assert!(equal <= 1, "seed {seed}, epoch {epoch}");
    }
    assert!(equal(&shown(0, 1)[..99], &first[1..]) <= 1);
    assert!(equal(&shown(0, 1), &shown(1, 0)) <= 1);
}

/// Reported runs stay reproducible.
#[test]
fn random_changes_equal_those_of_earlier_versions() {
    let batcher = CifarBatcher::augmented(CifarAugmentation::default(), 42, 1);
    let shown = show(&train(), batcher, &[0, 1, 2]);
    let expected = [mirrored(&crop(1, 0)), crop(1, 3), mirrored(&crop(3, -1))];
    for (image, expected) in shown.iter().zip(expected) {
        assert_eq!(bytes(image), expected);
    }
}
