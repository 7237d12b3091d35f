use rand::{Rng, RngExt};

use super::{check, color, geometry, tone};
use crate::{ImagenetError, raster::Raster};

/// A number of operations, each any of 14 with the same probability, all of the same strength.
///
/// As torchvision's `RandAugment`, with its table of strengths: shears, shifts and turns either way, to the nearest pixel, with
/// black from outside; more or less brightness, colour, contrast and sharpness; fewer bits, bright values inverted, contrast
/// spread, values equalised, or nothing (Cubuk et al., *RandAugment: Practical Automated Data Augmentation with a Reduced Search
/// Space*, 2020).
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::RandAugment;
///
/// let weak = RandAugment { magnitude: 5, ..RandAugment::default() };
/// # let _ = weak;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandAugment {
    /// How many operations follow each other.
    pub operations: usize,
    /// How strong they are: 0 to 30.
    pub magnitude: usize,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self {
            operations: 2,
            magnitude: 9,
        }
    }
}

/// The strongest magnitude.
const STRONGEST: usize = 30;

/// An operation, with what to do to an image at a share from 0 to 1 of its strongest, either way if it has two ways.
pub(super) type Operation = (&'static str, fn(&mut Raster, share: f64, sign: f64));

pub(super) const OPERATIONS: [Operation; 14] = [
    ("Identity", |_, _, _| {}),
    ("ShearX", |image, share, sign| {
        geometry::shear_x(image, sign * 0.3 * share)
    }),
    ("ShearY", |image, share, sign| {
        geometry::shear_y(image, sign * 0.3 * share)
    }),
    ("TranslateX", |image, share, sign| {
        geometry::translate_x(image, sign * share * 150.0 / 331.0 * image.width as f64);
    }),
    ("TranslateY", |image, share, sign| {
        geometry::translate_y(image, sign * share * 150.0 / 331.0 * image.height as f64);
    }),
    ("Rotate", |image, share, sign| {
        geometry::rotate(image, sign * 30.0 * share)
    }),
    ("Brightness", |image, share, sign| {
        color::brightness(image, 1.0 + sign * 0.9 * share)
    }),
    ("Color", |image, share, sign| {
        color::saturation(image, 1.0 + sign * 0.9 * share)
    }),
    ("Contrast", |image, share, sign| {
        color::contrast(image, 1.0 + sign * 0.9 * share)
    }),
    ("Sharpness", |image, share, sign| {
        color::sharpness(image, 1.0 + sign * 0.9 * share)
    }),
    ("Posterize", |image, share, _| {
        tone::posterize(image, 8 - (4.0 * share).round_ties_even() as u32);
    }),
    ("Solarize", |image, share, _| {
        tone::solarize(image, 255.0 * (1.0 - share))
    }),
    ("AutoContrast", |image, _, _| tone::auto_contrast(image)),
    ("Equalize", |image, _, _| tone::equalize(image)),
];

impl RandAugment {
    pub(super) fn check(&self) -> Result<(), ImagenetError> {
        let right = self.magnitude <= STRONGEST;
        check(
            "the magnitude of RandAugment",
            self.magnitude,
            right,
            "it must be from 0 to 30",
        )
    }

    pub(super) fn apply(&self, image: &mut Raster, draws: &mut impl Rng) {
        let share = self.magnitude as f64 / STRONGEST as f64;
        for _ in 0..self.operations {
            let (_, operation) = OPERATIONS[draws.random_range(0..OPERATIONS.len())];
            let sign = if draws.random_bool(0.5) { -1.0 } else { 1.0 };
            operation(image, share, sign);
        }
    }
}
