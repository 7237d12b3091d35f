use rand::{Rng, RngExt};

use super::check;
use crate::{ImagenetError, Interpolation, resize::Rectangle};

/// A part of the image, of random area and shape at a random place, resized to what a model takes.
///
/// As torchvision's `RandomResizedCrop`, whose defaults these are (Szegedy et al., *Going Deeper with Convolutions*, 2015).
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::RandomResizedCrop;
///
/// // Shows more of the image, as for fine-tuning.
/// let gentle = RandomResizedCrop { area: [0.5, 1.0], ..RandomResizedCrop::default() };
/// # let _ = gentle;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// The least and the largest share of the image's area, above 0 and up to 1; those between are equally likely.
    pub area: [f64; 2],
    /// The least and the largest width over height, before resizing; their logarithms are equally likely.
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

/// Shapes that are drawn before one is taken that surely fits.
const TRIES: usize = 10;

impl RandomResizedCrop {
    pub(super) fn check(&self) -> Result<(), ImagenetError> {
        let ([least, largest], [narrow, wide]) = (self.area, self.ratio);
        let area = 0.0 < least && least <= largest && largest <= 1.0;
        let ratio = 0.0 < narrow && narrow <= wide && wide.is_finite();
        let shown = |range: [f64; 2]| format!("from {} to {}", range[0], range[1]);
        check(
            "the area of crops",
            shown(self.area),
            area,
            "both shares must be above 0 and up to 1, and ascend",
        )?;
        check(
            "the ratio of crops",
            shown(self.ratio),
            ratio,
            "both ratios must be above 0, and ascend",
        )
    }

    /// The part of an image of this size.
    pub(super) fn part(&self, width: u32, height: u32, draws: &mut impl Rng) -> Rectangle {
        let pixels = f64::from(width) * f64::from(height);
        let [least, largest] = self.area;
        let [narrow, wide] = self.ratio.map(f64::ln);
        for _ in 0..TRIES {
            let area = pixels * draws.random_range(least..=largest);
            let ratio = draws.random_range(narrow..=wide).exp();
            let across = (area * ratio).sqrt().round_ties_even() as u32;
            let down = (area / ratio).sqrt().round_ties_even() as u32;
            if (1..=width).contains(&across) && (1..=height).contains(&down) {
                return Rectangle {
                    left: draws.random_range(0..=width - across),
                    top: draws.random_range(0..=height - down),
                    width: across,
                    height: down,
                };
            }
        }
        self.middle(width, height)
    }

    /// The largest part in the middle whose shape is allowed.
    fn middle(&self, width: u32, height: u32) -> Rectangle {
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
        fn parts_lie_in_the_image(width in 1..2000_u32, height in 1..2000_u32, seed: u64) {
            let mut draws = ChaCha8Rng::seed_from_u64(seed);
            let part = RandomResizedCrop::default().part(width, height, &mut draws);
            prop_assert!(part.width > 0 && part.left + part.width <= width, "{part:?}");
            prop_assert!(part.height > 0 && part.top + part.height <= height, "{part:?}");
        }
    }

    /// Means of torchvision's own draws, 200,000 of `RandomResizedCrop.get_params` on 500×375, by `golden.py`: left, top,
    /// width, height, share of the area.
    const MEANS: [f64; 5] = [108.837705, 52.368345, 282.07932, 270.35633, 0.433_880];

    #[test]
    fn parts_are_spread_as_torchvision_has_them() {
        let mut draws = ChaCha8Rng::seed_from_u64(1);
        let crop = RandomResizedCrop::default();
        let parts = 200_000;
        let mut means = [0.0; 5];
        for _ in 0..parts {
            let part = crop.part(500, 375, &mut draws);
            let (w, h) = (f64::from(part.width), f64::from(part.height));
            let found = [
                f64::from(part.left),
                f64::from(part.top),
                w,
                h,
                w * h / 187_500.0,
            ];
            for (mean, found) in means.iter_mut().zip(found) {
                *mean += found / f64::from(parts);
            }
        }
        for (found, expected) in means.into_iter().zip(MEANS) {
            assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
        }
    }

    #[test]
    fn what_cannot_fit_is_cut_from_the_middle() {
        let crop = RandomResizedCrop::default();
        let mut draws = ChaCha8Rng::seed_from_u64(2);
        let part = crop.part(1000, 2, &mut draws);
        assert!(part.width <= 3 && part.height <= 2, "{part:?}");
        let expected = Rectangle {
            left: 133,
            top: 0,
            width: 133,
            height: 100,
        };
        assert_eq!(crop.middle(400, 100), expected);
        let expected = Rectangle {
            left: 0,
            top: 133,
            width: 100,
            height: 133,
        };
        assert_eq!(crop.middle(100, 400), expected);
    }
}
