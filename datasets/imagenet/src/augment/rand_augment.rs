use rand::{Rng, RngExt};

use super::{color, geometry, tone};
use crate::{
    error::{ImagenetError, check},
    raster::Raster,
};

/// Random operations out of 14, all of the same strength: torchvision's `RandAugment` and its table of strengths (Cubuk et
/// al., *RandAugment: Practical Automated Data Augmentation with a Reduced Search Space*, 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandAugment {
    /// The number of operations per image.
    pub operations: usize,
    /// Their strength, 0 to 30.
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

/// The largest magnitude.
const STRONGEST: usize = 30;

/// A name and a function of the image, a strength from 0 to 1, and a sign for operations with two directions.
type ImageOperation = (&'static str, fn(&mut Raster, share: f64, sign: f64));

const OPERATIONS: [ImageOperation; 14] = [
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
        color::brightness(image, factor(share, sign))
    }),
    ("Color", |image, share, sign| {
        color::saturation(image, factor(share, sign))
    }),
    ("Contrast", |image, share, sign| {
        color::contrast(image, factor(share, sign))
    }),
    ("Sharpness", |image, share, sign| {
        color::sharpness(image, factor(share, sign))
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

/// The factor of brightness, saturation, contrast and sharpness.
fn factor(share: f64, sign: f64) -> f64 {
    1.0 + sign * 0.9 * share
}

impl RandAugment {
    pub(super) fn check(&self) -> Result<(), ImagenetError> {
        let (setting, is_valid) = ("the magnitude of RandAugment", self.magnitude <= STRONGEST);
        check(setting, self.magnitude, is_valid, "it must be from 0 to 30")
    }

    pub(super) fn apply(&self, image: &mut Raster, rng: &mut impl Rng) {
        let share = self.magnitude as f64 / STRONGEST as f64;
        for _ in 0..self.operations {
            let (_, operation) = OPERATIONS[rng.random_range(0..OPERATIONS.len())];
            let sign = if rng.random_bool(0.5) { -1.0 } else { 1.0 };
            operation(image, share, sign);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{difference, picture, tiles};

    #[test]
    fn operations_equal_those_of_torchvision() {
        let source = picture("small.png");
        let tiles = tiles("operations", source.height);
        for (name, _) in OPERATIONS {
            assert!(tiles.iter().any(|(row, _)| row[0] == name), "{name}");
        }
        for (row, expected) in tiles {
            let mut image = source.clone();
            let [strength, sign] = [1, 2].map(|field| row[field].parse::<f64>().unwrap());
            if row[0] == "Hue" {
                color::hue(&mut image, sign * strength / 100.0);
            } else {
                let (_, operation) = OPERATIONS.iter().find(|(name, _)| *name == row[0]).unwrap();
                operation(&mut image, strength / 30.0, sign);
            }
            assert_eq!(difference(&image, &expected), (0, 0.0), "{row:?}");
        }
    }
}
