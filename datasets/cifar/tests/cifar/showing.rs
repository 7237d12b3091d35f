//! How images are shown to a model: normalised, and in training cropped, mirrored and cut out of.

use std::collections::HashSet;

use crate::folder::{record, write_cifar10, write_cifar100};
use burn::{
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::Dataset,
    },
    tensor::{DType, Device},
};
use stovepipe_cifar::{Augmentation, Cifar, CifarBatcher, Labels, SHAPE};
use tempfile::tempdir;

const NONE: Augmentation = Augmentation {
    crop_padding: 0,
    flip: false,
    cutout: 0,
};

/// Pixels that tell rows, columns and channels apart; none is black.
fn place(channel: usize, y: usize, x: usize) -> u8 {
    (1 + 70 * channel + 2 * y + (x * x + 3 * y) % 89) as u8
}

/// 100 equal images to train on.
fn train() -> Cifar {
    let data = tempdir().unwrap();
    write_cifar10(data.path(), |_| record(&[3], place).repeat(20));
    Cifar::train(Labels::Cifar10, data.path()).unwrap()
}

/// The places of all images.
fn every() -> Vec<usize> {
    (0..100).collect()
}

/// The images at `places`, one after the other.
fn show(set: &Cifar, batcher: CifarBatcher, places: &[usize]) -> Vec<Vec<f32>> {
    let items = set.get_many(places.to_vec()).unwrap();
    let (images, _) = batcher.batch(items, &Device::default());
    let values = images.into_data().try_to_vec::<f32>().unwrap();
    values.chunks(3072).map(<[f32]>::to_vec).collect()
}

/// As bytes again; nothing for what is no pixel value, such as the mean colour.
fn bytes(image: &[f32]) -> Vec<Option<u8>> {
    let (mean, std) = (Labels::Cifar10.mean(), Labels::Cifar10.std());
    let byte = |(index, value): (usize, &f32)| {
        let channel = index / 1024;
        let pixel = 255.0 * (value * std[channel] + mean[channel]);
        ((pixel - pixel.round()).abs() < 1e-3).then_some(pixel.round() as u8)
    };
    image.iter().enumerate().map(byte).collect()
}

/// An image of `pixel(channel, y, x)`, which may lie outside.
fn image(pixel: impl Fn(usize, i32, i32) -> u8) -> Vec<Option<u8>> {
    let mut image = Vec::new();
    for channel in 0..3 {
        for y in 0..32 {
            image.extend((0..32).map(|x| Some(pixel(channel, y, x))));
        }
    }
    image
}

/// The crop that begins `down` and `right` of the image, by definition.
fn crop(down: i32, right: i32) -> Vec<Option<u8>> {
    image(|channel, y, x| match (y + down, x + right) {
        (y @ 0..32, x @ 0..32) => place(channel, y as usize, x as usize),
        _ => 0,
    })
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
        (Labels::Cifar100Coarse, [4, 0, 19]),
        (Labels::Cifar100Fine, [95, 99, 80]),
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

/// (pixel / 255 - mean) / std, worked out by hand with the figures as papers round them.
#[test]
fn normalisation_by_hand() {
    let data = tempdir().unwrap();
    let colour = |channel, _, _| [255, 51, 0][channel];
    write_cifar10(data.path(), |_| record(&[0], colour));
    write_cifar100(data.path(), |_| record(&[0, 0], colour));
    for (labels, expected) in [
        // (1 - 0.4914) / 0.2470, (0.2 - 0.4822) / 0.2435, (0 - 0.4465) / 0.2616
        (Labels::Cifar10, [2.0591, -1.1589, -1.7068]),
        // (1 - 0.5071) / 0.2673, (0.2 - 0.4865) / 0.2564, (0 - 0.4409) / 0.2762
        (Labels::Cifar100Fine, [1.8440, -1.1174, -1.5963]),
        (Labels::Cifar100Coarse, [1.8440, -1.1174, -1.5963]),
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
fn evaluation_shows_images_as_they_are() {
    let set = train();
    let expected = image(|channel, y, x| place(channel, y as usize, x as usize));
    let plain = &show(&set, CifarBatcher::default(), &[7])[0];
    assert_eq!(bytes(plain), expected);
    // And so does training without augmentation.
    assert_eq!(
        show(&set, CifarBatcher::augmented(NONE, 1, 2), &[7])[0],
        *plain
    );
}

#[test]
fn a_crop_is_one_of_all_shifts_and_each_occurs() {
    let set = train();
    for padding in [1_u8, 2] {
        let augmentation = Augmentation {
            crop_padding: padding,
            ..NONE
        };
        let range = -i32::from(padding)..=i32::from(padding);
        let shifts: Vec<_> = range
            .clone()
            .flat_map(|y| range.clone().map(move |x| crop(y, x)))
            .collect();
        let mut counts = vec![0; shifts.len()];
        for epoch in 0..6 {
            let batcher = CifarBatcher::augmented(augmentation, 5, epoch);
            for shown in show(&set, batcher, &every()) {
                let bytes = bytes(&shown);
                let shift = shifts.iter().position(|shift| *shift == bytes);
                counts[shift.expect("no shift of the image")] += 1;
            }
        }
        // 600 draws among 9 or 25: 67 or 24 each, give or take four standard deviations.
        let mean = 600 / shifts.len();
        let (least, most) = (mean / 4, 2 * mean);
        assert!(
            counts.iter().all(|count| (least..=most).contains(count)),
            "{counts:?}"
        );
    }
}

#[test]
fn a_crop_may_leave_nothing_of_an_image() {
    let set = train();
    let augmentation = Augmentation {
        crop_padding: 255,
        ..NONE
    };
    let black = image(|_, _, _| 0);
    let shown = show(
        &set,
        CifarBatcher::augmented(augmentation, 0, 0),
        &[0, 1, 2, 3, 4, 5, 6, 7],
    );
    assert!(shown.iter().any(|image| bytes(image) == black));
}

#[test]
fn half_of_the_images_are_mirrored() {
    let set = train();
    let augmentation = Augmentation { flip: true, ..NONE };
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

/// A crop is drawn and then mirrored, as the usual recipe has it: all four corners may be black.
#[test]
fn crops_and_flips_go_together() {
    let set = train();
    let augmentation = Augmentation {
        crop_padding: 1,
        flip: true,
        cutout: 0,
    };
    let shifts: Vec<_> = (-1..=1)
        .flat_map(|y| (-1..=1).map(move |x| crop(y, x)))
        .collect();
    let all: Vec<_> = shifts
        .iter()
        .cloned()
        .chain(shifts.iter().map(|image| mirrored(image)))
        .collect();
    let mut seen = HashSet::new();
    for epoch in 0..3 {
        let batcher = CifarBatcher::augmented(augmentation, 3, epoch);
        for shown in show(&set, batcher, &every()) {
            let bytes = bytes(&shown);
            seen.insert(
                all.iter()
                    .position(|image| *image == bytes)
                    .expect("no such image"),
            );
        }
    }
    assert_eq!(seen.len(), 18);
}

/// Squares of 16 around any pixel: what is outside of the image is lost.
#[test]
fn cutout_clears_a_square_that_may_be_clipped() {
    let set = train();
    for side in [1, 7, 16] {
        let augmentation = Augmentation {
            cutout: side,
            ..NONE
        };
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
        assert!(
            *areas.iter().min().unwrap() <= (side * side).div_ceil(2),
            "{areas:?}"
        );
    }
}

/// The area of the hole, which must be the same clipped square in all channels, and zero.
fn check_hole(shown: &[f32], plain: &[f32], side: usize) -> usize {
    let is_cut: Vec<_> = shown
        .iter()
        .zip(plain)
        .map(|(shown, plain)| shown != plain)
        .collect();
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
        // A centre is in the image, so half of a side is.
        let least = if touches {
            side - side.div_ceil(2)
        } else {
            side
        };
        assert!(
            (least.max(1)..=side).contains(&length),
            "{length} of {side}"
        );
    }
    assert!(places.iter().all(|&place| {
        [0, 1024, 2048]
            .iter()
            .all(|&plane| shown[plane + place] == 0.0)
    }));
    places.len()
}

const ALL: Augmentation = Augmentation {
    crop_padding: 4,
    flip: true,
    cutout: 8,
};

#[test]
fn what_a_sample_gets_depends_on_no_other_sample() {
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
    // Other threads, in an order of Burn's.
    let loader = DataLoaderBuilder::new(batcher)
        .batch_size(9)
        .shuffle(1)
        .num_workers(3)
        .build(set);
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
fn seeds_epochs_and_samples_draw_their_own() {
    let set = train();
    let shown = |seed, epoch| show(&set, CifarBatcher::augmented(ALL, seed, epoch), &every());
    let equal = |a: &[Vec<f32>], b: &[Vec<f32>]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    let first = shown(0, 0);
    assert_eq!(equal(&first, &shown(0, 0)), 100);
    // Samples are equal images: what differs is what was drawn for them.
    assert!(equal(&first[..99], &first[1..]) <= 1);
    // Nor is one number taken for another.
    for (seed, epoch) in [(0, 1), (1, 0), (1, 1), (0, 2), (1 << 32, 0), (0, 1 << 32)] {
        assert!(
            equal(&first, &shown(seed, epoch)) <= 1,
            "seed {seed}, epoch {epoch}"
        );
    }
    assert!(equal(&shown(0, 1)[..99], &first[1..]) <= 1);
    assert!(equal(&shown(0, 1), &shown(1, 0)) <= 1);
}

/// A run that was reported should stay what it was.
#[test]
fn draws_are_those_of_earlier_versions() {
    let batcher = CifarBatcher::augmented(Augmentation::default(), 42, 1);
    let shown = show(&train(), batcher, &[0, 1, 2]);
    let expected = [mirrored(&crop(1, 0)), crop(1, 3), mirrored(&crop(3, -1))];
    for (image, expected) in shown.iter().zip(expected) {
        assert_eq!(bytes(image), expected);
    }
}
