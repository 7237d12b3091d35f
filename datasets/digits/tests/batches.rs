//! Batches have the right shape, scale and content.

use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::tensor::{DType, Device, Tensor};
use stovepipe_digits::{CLASSES, DigitBatcher, Digits, MEAN, SHAPE, STD};

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn values(tensor: Tensor<4>) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    Ok(tensor.into_data().try_to_vec::<f32>()?)
}

#[test]
fn a_batch_has_its_shape_types_and_labels() -> TestResult {
    let train = Digits::train()?;
    for n in [1, 5, 128] {
        let digits = &train.as_slice()[..n];
        let (images, labels) = DigitBatcher.batch(digits.to_vec(), &Device::default());
        assert_eq!(images.dims(), [n, 3, 32, 32]);
        assert_eq!(images.dtype(), DType::F32);
        assert_eq!(labels.dims(), [n]);
        assert!(labels.dtype().is_int());
        let expected = digits.iter().map(|digit| i64::from(digit.label));
        assert!(labels.into_data().iter::<i64>().eq(expected));
    }
    Ok(())
}

#[test]
fn each_channel_is_the_enlarged_scan_normalised() -> TestResult {
    let test = Digits::test()?;
    let digits = &test.as_slice()[..3];
    let (images, _) = DigitBatcher.batch(digits.to_vec(), &Device::default());
    let images = values(images)?;
    let [channels, height, width] = SHAPE;
    assert_eq!(images.len(), digits.len() * channels * height * width);
    for (place, channel) in images.chunks(height * width).enumerate() {
        for (shown, pixel) in channel.iter().zip(digits[place / channels].enlarged()) {
            let difference = (shown * STD + MEAN - pixel).abs();
            assert!(difference < 1e-5, "channel {place}: {shown} shows {pixel}");
        }
    }
    Ok(())
}

#[test]
fn the_training_split_has_mean_zero_and_variance_one() -> TestResult {
    let train = Digits::train()?;
    let (images, _) = DigitBatcher.batch(train.as_slice().to_vec(), &Device::default());
    let (mean, std) = moments(&values(images)?);
    assert!(mean.abs() < 1e-4, "mean {mean}");
    assert!((std - 1.0).abs() < 1e-4, "standard deviation {std}");
    Ok(())
}

#[test]
fn the_constants_are_those_of_the_enlarged_training_split() -> TestResult {
    let train = Digits::train()?;
    let pixels = train.as_slice().iter().flat_map(|digit| digit.enlarged());
    let (mean, std) = moments(&pixels.collect::<Vec<_>>());
    let (mean_error, std_error) = (mean - f64::from(MEAN), std - f64::from(STD));
    assert!(mean_error.abs() < 1e-5, "mean {mean}");
    assert!(std_error.abs() < 1e-5, "standard deviation {std}");
    Ok(())
}

#[test]
fn a_loader_shows_every_image_once() -> TestResult {
    let test = Digits::test()?;
    let mut expected = [0; CLASSES];
    for digit in test.as_slice() {
        expected[usize::from(digit.label)] += 1;
    }
    let loader = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(50)
        .shuffle(3);
    let loader = loader.num_workers(2).build(test);
    let mut found = [0; CLASSES];
    for batch in loader.iter() {
        let (images, labels) = batch?;
        assert_eq!(images.dims()[0], labels.dims()[0]);
        for label in labels.into_data().iter::<i64>() {
            found[usize::try_from(label)?] += 1;
        }
    }
    assert_eq!(found, expected);
    Ok(())
}

/// Mean and standard deviation.
fn moments(values: &[f32]) -> (f64, f64) {
    let values = || values.iter().map(|&value| f64::from(value));
    let count = values().len() as f64;
    let mean = values().sum::<f64>() / count;
    let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}
