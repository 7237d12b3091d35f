//! Halves and doubles maps.

use burn::{
    module::Module,
    tensor::{Tensor, s},
};
use stovepipe_kernels::{PoolWindow, max_pool};
use stovepipe_pipeline::LayerError;

use crate::convolution::ensure;

/// The maximum of each 2×2: `[n, c, h, w]` to `[n, c, ⌊h/2⌋, ⌊w/2⌋]`. The last row or column of an odd
/// map is dropped here; the skip has the whole map.
#[derive(Module, Debug)]
pub struct Down {
    #[module(skip)]
    pub(crate) level: usize,
}

impl Down {
    pub(crate) fn forward(&self, x: Tensor<4>) -> Result<Tensor<4>, LayerError> {
        let [_, _, height, width] = x.dims();
        let expected = "maps of 2×2 pixels or more to halve (larger images, or less depth)";
        ensure(height.min(width) >= 2, || expected.to_owned(), &x)?;
        let even = match height % 2 + width % 2 {
            0 => x,
            _ => x.slice(s![.., .., ..height / 2 * 2, ..width / 2 * 2]),
        };
        Ok(max_pool(even, PoolWindow { size: 2, stride: 2 }))
    }
}

/// Repeats each pixel as 2×2, and appends the channels of the skip: `[n, c, h, w]` and `[n, c', H, W]` to
/// `[n, c + c', H, W]`, where H is 2h or 2h + 1, and W is 2w or 2w + 1. A missing row or column is zero.
#[derive(Module, Debug)]
pub struct Up {
    #[module(skip)]
    pub(crate) level: usize,
}

impl Up {
    pub(crate) fn forward(&self, x: Tensor<4>, skip: Tensor<4>) -> Result<Tensor<4>, LayerError> {
        let missing = missing(x.dims(), skip.dims())?;
        let doubled = doubled(x);
        let padded = match missing {
            [0, 0] => doubled,
            [rows, columns] => doubled.pad([(0, rows), (0, columns)], 0.0),
        };
        Ok(Tensor::cat(vec![padded, skip], 1))
    }
}

/// The rows and columns that the doubled map lacks, compared with the skip.
fn missing(x: [usize; 4], skip: [usize; 4]) -> Result<[usize; 2], LayerError> {
    let lacks = |axis: usize| skip[axis].checked_sub(2 * x[axis]).filter(|&n| n < 2);
    match (lacks(2), lacks(3)) {
        (Some(rows), Some(columns)) if x[0] == skip[0] => Ok([rows, columns]),
        _ => Err(LayerError::new(
            "maps of half the size of the skip",
            format!("{x:?} and {skip:?}"),
        )),
    }
}

fn doubled(x: Tensor<4>) -> Tensor<4> {
    let [samples, channels, height, width] = x.dims();
    let maps = samples * channels;
    x.reshape([maps, height, 1, width, 1])
        .expand([maps, height, 2, width, 2])
        .reshape([samples, channels, 2 * height, 2 * width])
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn map<const H: usize, const W: usize>(rows: [[f32; W]; H]) -> Tensor<4> {
        Tensor::<2>::from_floats(rows, &Device::flex()).reshape([1, 1, H, W])
    }

    #[test]
    fn pixels_are_doubled_and_missing_ones_are_zero() {
        let skip = map([[5.0, 6.0, 7.0, 8.0]; 3]);
        let y = (Up { level: 0 }).forward(map([[1.0, 2.0]]), skip).unwrap();
        assert_eq!(y.dims(), [1, 2, 3, 4]);
        let y: Vec<f32> = y.into_data().try_to_vec().unwrap();
        let row = [1.0, 1.0, 2.0, 2.0];
        assert_eq!(y[..12], [row, row, [0.0; 4]].concat());
        assert_eq!(y[12..], [5.0, 6.0, 7.0, 8.0].repeat(3));
    }

    #[test]
    fn a_skip_of_another_size_is_refused() {
        let refused = |height: usize, width: usize| {
            let skip = Tensor::zeros([1, 1, height, width], &Device::flex());
            (Up { level: 0 }).forward(map([[1.0, 2.0]]), skip).is_err()
        };
        assert!(refused(4, 4) && refused(1, 4) && refused(2, 6));
        assert!(!refused(3, 5));
    }
}
