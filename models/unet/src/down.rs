//! Halves a map.

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
