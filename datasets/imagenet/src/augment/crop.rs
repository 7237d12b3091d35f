use rand::{Rng, RngExt};

use crate::{
    Interpolation,
    error::{ImagenetError, check},
    resize::Rectangle,
};

/// A random part of the image, resized to the model's input: torchvision's `RandomResizedCrop` and its defaults (Szegedy
/// et al., *Going Deeper with Convolutions*, 2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// The range of the share of the image's area, above 0 and up to 1.
    pub area: [f64; 2],
    /// The range of width over height, before resizing. Its logarithm is drawn uniformly.
    pub ratio: [f64; 2],
    /// How it is resized.
    pub interpolation: Interpolation,
}

impl Default for RandomResizedCrop {
    fn default() -> Self {
        Self {
            area: [0.08, 1.0],
            ratio: [3.0 / 4.0, 4.0 / 3.0],
            interpolation: Interpolation::default(),
        }
    }
}

/// The number of shapes to draw before a centre crop is used.
const TRIES: usize = 10;

impl RandomResizedCrop {
    pub(super) fn check(&self) -> Result<(), ImagenetError> {
        let ([least, largest], [narrow, wide]) = (self.area, self.ratio);
        let area = 0.0 < least && least <= largest && largest <= 1.0;
        let ratio = 0.0 < narrow && narrow <= wide && wide.is_finite();
        let shown = |range: [f64; 2]| format!("from {} to {}", range[0], range[1]);
        let range = "both shares must be above 0 and up to 1, in ascending order";
        check("the area of crops", shown(self.area), area, range)?;
        let range = "both ratios must be above 0, in ascending order";
        check("the ratio of crops", shown(self.ratio), ratio, range)
    }

    /// The part of an image of this size.
    pub(super) fn part(&self, width: u32, height: u32, rng: &mut impl Rng) -> Rectangle {
        let pixels = f64::from(width) * f64::from(height);
        let [least, largest] = self.area;
        let [narrow, wide] = self.ratio.map(f64::ln);
        for _ in 0..TRIES {
            let area = pixels * rng.random_range(least..=largest);
            let ratio = rng.random_range(narrow..=wide).exp();
            let across = (area * ratio).sqrt().round_ties_even() as u32;
            let down = (area / ratio).sqrt().round_ties_even() as u32;
            if (1..=width).contains(&across) && (1..=height).contains(&down) {
                return Rectangle {
                    left: rng.random_range(0..=width - across),
                    top: rng.random_range(0..=height - down),
                    width: across,
                    height: down,
                };
            }
        }
        self.centre(width, height)
    }

    /// The largest centre crop with an allowed shape.
    fn centre(&self, width: u32, height: u32) -> Rectangle {
        let ratio = f64::from(width) / f64::from(height);
        let [narrow, wide] = self.ratio;
        let (mut across, mut down) = (width, height);
        if ratio < narrow {
            down = ((f64::from(width) / narrow).round_ties_even() as u32).clamp(1, height);
        } else if ratio > wide {
            across = ((f64::from(height) * wide).round_ties_even() as u32).clamp(1, width);
        }
        Rectangle {
            left: (width - across) / 2,
            top: (height - down) / 2,
            width: across,
            height: down,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_inside_the_image(width in 1..2000_u32, height in 1..2000_u32, seed: u64) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let part = RandomResizedCrop::default().part(width, height, &mut rng);
            prop_assert!(part.width > 0 && part.left + part.width <= width, "{part:?}");
            prop_assert!(part.height > 0 && part.top + part.height <= height, "{part:?}");
        }
    }

    /// Means of 200,000 draws of torchvision's `RandomResizedCrop.get_params` on 500×375, by `golden.py`: left, top, width,
    /// height, share of the area.
    const MEANS: [f64; 5] = [108.837705, 52.368345, 282.07932, 270.35633, 0.433_880];

    #[test]
    fn parts_are_distributed_as_by_torchvision() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let crop = RandomResizedCrop::default();
        let parts = 200_000;
        let mut means = [0.0; 5];
        for _ in 0..parts {
            let part = crop.part(500, 375, &mut rng);
            let [left, top] = [part.left, part.top].map(f64::from);
            let [width, height] = [part.width, part.height].map(f64::from);
            let found = [left, top, width, height, width * height / 187_500.0];
            for (mean, found) in means.iter_mut().zip(found) {
                *mean += found / f64::from(parts);
            }
        }
        for (found, expected) in means.into_iter().zip(MEANS) {
            assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
        }
    }

    #[test]
    fn long_images_get_a_centre_crop() {
        let crop = RandomResizedCrop::default();
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let part = crop.part(1000, 2, &mut rng);
        assert!(part.width <= 3 && part.height <= 2, "{part:?}");
        let centre = |width, height| {
            let Rectangle {
                left,
                top,
                width,
                height,
            } = crop.centre(width, height);
            [left, top, width, height]
        };
        assert_eq!(centre(400, 100), [133, 0, 133, 100]);
        assert_eq!(centre(100, 400), [0, 133, 100, 133]);
    }
}
