use rand::{Rng, RngExt, seq::SliceRandom};

use super::{check, color};
use crate::{ImagenetError, raster::Raster};

/// Changes of brightness, contrast, saturation and hue by random factors, in random order.
///
/// As torchvision's `ColorJitter`. The default is that of many recipes for transfer.
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::ColorJitter;
///
/// let without_hue = ColorJitter { hue: 0.0, ..ColorJitter::default() };
/// # let _ = without_hue;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorJitter {
    /// Brightness is multiplied by up to so much more or less than 1, but by 0 at least.
    pub brightness: f64,
    /// Likewise the distance from the mean gray.
    pub contrast: f64,
    /// Likewise the distance from the pixel's own gray.
    pub saturation: f64,
    /// Colours turn by up to this share of the circle either way, ½ at most.
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
            let right = value >= 0.0 && value.is_finite();
            check(setting, value, right, "it must be 0 or above")?;
        }
        let right = (0.0..=0.5).contains(&self.hue);
        check(
            "the jitter of hue",
            self.hue,
            right,
            "it must be from 0 to 0.5",
        )
    }

    pub(super) fn apply(&self, image: &mut Raster, draws: &mut impl Rng) {
        let mut order = [0, 1, 2, 3];
        order.shuffle(draws);
        let mut factor = |by: f64| draws.random_range((1.0 - by).max(0.0)..=1.0 + by);
        let [brightness, contrast, saturation] =
            [self.brightness, self.contrast, self.saturation].map(&mut factor);
        let shift = draws.random_range(-self.hue..=self.hue);
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
