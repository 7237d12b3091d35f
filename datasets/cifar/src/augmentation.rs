use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::SIDE;

/// Random changes to training images.
///
/// The default is that of most recipes: a crop with a padding of 4, and a flip. It is equivalent to torchvision's
/// `RandomCrop(32, padding)`, `RandomHorizontalFlip`, `ToTensor`, `Normalize` and then cutout: padding is black before
/// normalisation, and cutout sets pixels to zero after it.
///
/// ```
/// use stovepipe_cifar::CifarAugmentation;
///
/// let default = CifarAugmentation::default();
/// assert_eq!((default.crop_padding, default.flip, default.cutout), (4, true, 0));
/// let with_cutout = CifarAugmentation { cutout: 16, ..default };
/// # let _ = with_cutout;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CifarAugmentation {
    /// Black pixels added on each side before a random crop of 32×32; 0 for no crop.
    pub crop_padding: u8,
    /// Whether half of the images are flipped horizontally.
    pub flip: bool,
    /// Side of the square that is set to zero; 0 for none. Its centre is a random pixel, and it is clipped at the image's
    /// edges (DeVries & Taylor, *Improved Regularization of Convolutional Neural Networks with Cutout*, 2017, which uses
    /// 16 for CIFAR-10 and 8 for CIFAR-100).
    pub cutout: u8,
}

impl Default for CifarAugmentation {
    fn default() -> Self {
        Self {
            crop_padding: 4,
            flip: true,
            cutout: 0,
        }
    }
}

impl CifarAugmentation {
    /// How a sample is shown in an epoch.
    ///
    /// The three numbers are the generator's key, so that batches, order and threads do not matter.
    pub(crate) fn view(&self, seed: u64, epoch: u64, sample: u64) -> View {
        let mut key = [0; 32];
        for (place, number) in key.chunks_exact_mut(8).zip([seed, epoch, sample]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let mut rng = ChaCha8Rng::from_seed(key);
        let padding = i32::from(self.crop_padding);
        let shift = -padding..=padding;
        let (down, right) = (rng.random_range(shift.clone()), rng.random_range(shift));
        // Always drawn, so that the cutout does not depend on `flip`.
        let flipped = rng.random_bool(0.5) && self.flip;
        let (y, x) = (rng.random_range(0..SIDE), rng.random_range(0..SIDE));
        View {
            down,
            right,
            flipped,
            hole: (self.hole(y), self.hole(x)),
        }
    }

    /// The rows or columns of the cutout around `centre`.
    fn hole(&self, centre: usize) -> Range<usize> {
        let side = usize::from(self.cutout);
        centre.saturating_sub(side / 2)..(centre + side.div_ceil(2)).min(SIDE)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The first row of the crop; negative in the padding.
    down: i32,
    /// The first column of the crop.
    right: i32,
    flipped: bool,
    /// Rows and columns of the cutout.
    hole: (Range<usize>, Range<usize>),
}

impl View {
    /// The unchanged image.
    pub const PLAIN: Self = Self {
        down: 0,
        right: 0,
        flipped: false,
        hole: (0..0, 0..0),
    };

    /// A row of a channel, cropped and flipped.
    pub fn row(&self, plane: &[[u8; SIDE]], y: usize) -> [u8; SIDE] {
        let mut shown = [0; SIDE];
        if let Some(row) = moved(y, self.down).and_then(|y| plane.get(y)) {
            for (x, pixel) in shown.iter_mut().enumerate() {
                let source = moved(x, self.right).and_then(|x| row.get(x));
                *pixel = source.copied().unwrap_or(0);
            }
        }
        if self.flipped {
            shown.reverse();
        }
        shown
    }

    /// The columns of a row's cutout.
    pub fn hole(&self, y: usize) -> Range<usize> {
        let (rows, columns) = &self.hole;
        if rows.contains(&y) {
            columns.clone()
        } else {
            0..0
        }
    }
}

/// `place + by`, unless it is negative.
fn moved(place: usize, by: i32) -> Option<usize> {
    place.checked_add_signed(by as isize)
}
