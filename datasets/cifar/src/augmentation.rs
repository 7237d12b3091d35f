use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::SIDE;

/// What is done to training images at random, so that a model does not see the same ones again and again.
///
/// The default is what most recipes do: a crop out of four pixels more on each side, and a flip. It is applied as
/// torchvision's `RandomCrop(32, padding)`, `RandomHorizontalFlip`, `ToTensor`, `Normalize` and then cutout would be: what
/// a crop adds is black before normalisation, what cutout takes away is the mean colour, which is zero after it.
///
/// # Example
///
/// ```
/// use stovepipe_cifar::Augmentation;
///
/// let usual = Augmentation::default();
/// assert_eq!((usual.crop_padding, usual.flip, usual.cutout), (4, true, 0));
/// let with_cutout = Augmentation { cutout: 16, ..usual };
/// # let _ = with_cutout;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Augmentation {
    /// Black pixels put on each side before 32×32 are cropped, at any of the `(2 · crop_padding + 1)²` places with the
    /// same probability; 0 for no crop.
    pub crop_padding: u8,
    /// Whether half of the images are mirrored, left to right.
    pub flip: bool,
    /// Side of the square that is cut out; 0 for none. Its centre is any pixel with the same probability, and what of it
    /// lies outside of the image is lost (DeVries & Taylor, *Improved Regularization of Convolutional Neural Networks
    /// with Cutout*, 2017, which has 16 for CIFAR-10 and 8 for CIFAR-100).
    pub cutout: u8,
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            crop_padding: 4,
            flip: true,
            cutout: 0,
        }
    }
}

impl Augmentation {
    /// How a sample is shown in an epoch.
    ///
    /// The three numbers are the generator's key: a sample's draws depend on no other sample's, and so on no batch,
    /// order or thread.
    pub(crate) fn view(&self, seed: u64, epoch: u64, sample: u64) -> View {
        let mut key = [0; 32];
        for (place, number) in key.chunks_exact_mut(8).zip([seed, epoch, sample]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let mut draws = ChaCha8Rng::from_seed(key);
        let padding = i32::from(self.crop_padding);
        let (down, right) = (
            draws.random_range(-padding..=padding),
            draws.random_range(-padding..=padding),
        );
        // Drawn also if it is not wanted: what is cut out does not depend on it.
        let flipped = draws.random_bool(0.5) && self.flip;
        let (y, x) = (draws.random_range(0..SIDE), draws.random_range(0..SIDE));
        View {
            down,
            right,
            flipped,
            hole: (self.hole(y), self.hole(x)),
        }
    }

    /// The rows or columns that are cut out around `centre`.
    fn hole(&self, centre: usize) -> Range<usize> {
        let side = usize::from(self.cutout);
        centre.saturating_sub(side / 2)..(centre + side.div_ceil(2)).min(SIDE)
    }
}

/// How one image is shown.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Rows, from the image's first one, to the first one of the crop.
    down: i32,
    /// Columns, likewise.
    right: i32,
    flipped: bool,
    /// Rows and columns that are cut out.
    hole: (Range<usize>, Range<usize>),
}

impl View {
    /// The image as it is.
    pub const PLAIN: Self = Self {
        down: 0,
        right: 0,
        flipped: false,
        hole: (0..0, 0..0),
    };

    /// A row of a channel: cropped, black where the crop leaves the image, and mirrored.
    pub fn row(&self, plane: &[[u8; SIDE]], y: usize) -> [u8; SIDE] {
        let mut shown = [0; SIDE];
        if let Some(row) = moved(y, self.down).and_then(|y| plane.get(y)) {
            for (x, pixel) in shown.iter_mut().enumerate() {
                *pixel = moved(x, self.right)
                    .and_then(|x| row.get(x))
                    .copied()
                    .unwrap_or(0);
            }
        }
        if self.flipped {
            shown.reverse();
        }
        shown
    }

    /// The columns that are cut out of a row.
    pub fn hole(&self, y: usize) -> Range<usize> {
        let (rows, columns) = &self.hole;
        match rows.contains(&y) {
            true => columns.clone(),
            false => 0..0,
        }
    }
}

/// A place in the image, unless it lies before its first row or column.
fn moved(place: usize, by: i32) -> Option<usize> {
    place.checked_add_signed(by as isize)
}
