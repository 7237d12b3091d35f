use rand::{Rng, RngExt, seq::SliceRandom};

use super::color;
use crate::{
    error::{ImagenetError, check},
    raster::Raster,
};

/// Changes of brightness, contrast, saturation and hue by random factors, in random order: torchvision's `ColorJitter`.
///
/// The default is that of many recipes for transfer learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorJitter {
    /// The largest change of the factor of brightness from 1.
    pub brightness: f64,
    /// The same for contrast.
    pub contrast: f64,
    /// The same for saturation.
    pub saturation: f64,
    /// The largest rotation of the hue, as a share of the circle, up to ½.
    pub hue: f64,
}

impl Default for ColorJitter {
    fn default() -> Self {
        Self {
            brightness: 0.4,
            contrast: 0.4,
            saturation: 0.4,
            hue: 0.1,
        }
    }
}

impl ColorJitter {
    pub(super) fn check(&self) -> Result<(), ImagenetError> {
        for (setting, value) in [
            ("the jitter of brightness", self.brightness),
            ("the jitter of contrast", self.contrast),
            ("the jitter of saturation", self.saturation),
        ] {
            let is_valid = value >= 0.0 && value.is_finite();
            check(setting, value, is_valid, "it must be 0 or above")?;
        }
        let is_valid = (0.0..=0.5).contains(&self.hue);
        let range = "it must be from 0 to 0.5";
        check("the jitter of hue", self.hue, is_valid, range)
    }

    pub(super) fn apply(&self, image: &mut Raster, rng: &mut impl Rng) {
        let mut order = [0, 1, 2, 3];
        order.shuffle(rng);
        let mut factor = |by: f64| rng.random_range((1.0 - by).max(0.0)..=1.0 + by);
        let [brightness, contrast, saturation] =
            [self.brightness, self.contrast, self.saturation].map(&mut factor);
        let shift = rng.random_range(-self.hue..=self.hue);
        for step in order {
            match step {
                0 if self.brightness > 0.0 => color::brightness(image, brightness),
                1 if self.contrast > 0.0 => color::contrast(image, contrast),
                2 if self.saturation > 0.0 => color::saturation(image, saturation),
                3 if self.hue > 0.0 => color::hue(image, shift),
                _ => {}
            }
        }
    }
}
