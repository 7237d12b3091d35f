use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::TokenWindow;

/// Input tokens `[n, length]` and their targets `[n, length]`.
pub type TextBatch = (Tensor<2, Int>, Tensor<2, Int>);

/// Batches windows for a language model: input tokens `[n, length]` and targets `[n, length]`.
///
/// A target is the token after the input, or [`PADDING`](crate::PADDING). The input is 0 where there is no token.
/// `TextBatcher::default()` is for evaluation; for training see [`shifted`](Self::shifted).
///
/// ```
/// use burn::{data::{dataloader::batcher::Batcher, dataset::Dataset}, tensor::Device};
/// use stovepipe_text::{TextBatcher, TokenWindows};
///
/// let windows = TokenWindows::new((0..1000).collect::<Vec<_>>(), 64)?;
/// let items = windows.get_many(vec![3, 1, 4])?;
/// let (inputs, targets) = TextBatcher::default().batch(items.clone(), &Device::default());
/// assert_eq!((inputs.dims(), targets.dims()), ([3, 64], [3, 64]));
///
/// let inputs = |epoch| {
///     TextBatcher::shifted(42, epoch).batch(items.clone(), &Device::default()).0.into_data()
/// };
/// assert_eq!(inputs(3), inputs(3));
/// assert_ne!(inputs(3), inputs(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TextBatcher {
    offset: Option<EpochOffset>,
}

#[derive(Clone, Copy, Debug)]
struct EpochOffset {
    seed: u64,
    epoch: u64,
}

impl EpochOffset {
    fn draw(self, targets: usize) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.epoch);
        rng.random_range(0..targets)
    }
}

impl TextBatcher {
    /// A batcher for one epoch of training. All windows begin later by the same random number of tokens.
    ///
    /// With the same windows in each epoch, a window's first token would never be predicted from the tokens before it. The
    /// offset is drawn from `seed` and `epoch`. It wraps around: in one window, the first tokens of the text follow the last
    /// ones. So all epochs have equally many windows, and every token but the first of the text is a target exactly once.
    #[must_use]
    pub fn shifted(seed: u64, epoch: usize) -> Self {
        let epoch = epoch as u64;
        Self {
            offset: Some(EpochOffset { seed, epoch }),
        }
    }
}

impl Batcher<TokenWindow, TextBatch> for TextBatcher {
    fn batch(&self, items: Vec<TokenWindow>, device: &Device) -> TextBatch {
        let length = items.first().map_or(0, TokenWindow::length);
        let pairs = items.iter().flat_map(|window| {
            let offset = (self.offset).map_or(0, |offset| offset.draw(window.targets()));
            window.pairs(offset)
        });
        let (inputs, targets): (Vec<i32>, Vec<i32>) =
            pairs.map(|(input, target)| (input as i32, target)).unzip();

        let shape = [items.len(), length];
        let inputs = TensorData::new::<i32, _>(inputs, shape);
        let targets = TensorData::new::<i32, _>(targets, shape);
        let inputs = Tensor::from_data(inputs, device);
        (inputs, Tensor::from_data(targets, device))
    }
}
