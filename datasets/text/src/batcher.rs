use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Window;

/// Input tokens `[n, length]` and their targets `[n, length]`.
pub type TextBatch = (Tensor<2, Int>, Tensor<2, Int>);

/// Turns windows into what a language model takes: input tokens `[n, length]`, and as targets `[n, length]` the token after
/// each, or [`PADDING`](crate::PADDING). Where there is no token, the input is 0.
///
/// `TextBatcher::default()` shows windows as they are, for evaluation; for training see [`shifted`](Self::shifted).
///
/// # Example
///
/// ```
/// use burn::{data::{dataloader::batcher::Batcher, dataset::Dataset}, tensor::Device};
/// use stovepipe_text::{TextBatcher, Windows};
///
/// let windows = Windows::new((0..1000).collect::<Vec<_>>(), 64)?;
/// let items = windows.get_many(vec![3, 1, 4])?;
/// let (inputs, targets) = TextBatcher::default().batch(items, &Device::default());
/// assert_eq!((inputs.dims(), targets.dims()), ([3, 64], [3, 64]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TextBatcher {
    shift: Option<Shift>,
}

/// What the shift of an epoch depends on, besides the number of tokens.
#[derive(Clone, Copy, Debug)]
struct Shift {
    seed: u64,
    epoch: u64,
}

impl Shift {
    /// How many tokens later windows begin, if so many tokens are targets.
    fn of(self, targets: usize) -> usize {
        let mut draws = ChaCha8Rng::seed_from_u64(self.seed);
        draws.set_stream(self.epoch);
        draws.random_range(0..targets)
    }
}

impl TextBatcher {
    /// A batcher for one epoch of training, in which all windows begin the same number of tokens later.
    ///
    /// A model that saw the same windows in each epoch would never predict a window's first token from those before it.
    /// How much later is drawn from all tokens, by a generator with `seed` and `epoch` as key. The text is a ring: its first
    /// tokens follow on its last ones, in one window of the epoch. So there are as many windows in each epoch, and every token
    /// but the text's first is a target exactly once.
    ///
    /// # Example
    ///
    /// ```
    /// use burn::{data::{dataloader::batcher::Batcher, dataset::Dataset}, tensor::Device};
    /// use stovepipe_text::{TextBatcher, Windows};
    ///
    /// let windows = Windows::new((0..1000).collect::<Vec<_>>(), 64)?;
    /// let inputs = |epoch| {
    ///     let first = vec![windows.get(0).unwrap()];
    ///     TextBatcher::shifted(42, epoch).batch(first, &Device::default()).0.into_data()
    /// };
    /// assert_eq!(inputs(3), inputs(3));
    /// assert_ne!(inputs(3), inputs(4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shifted(seed: u64, epoch: usize) -> Self {
        let epoch = epoch as u64;
        Self {
            shift: Some(Shift { seed, epoch }),
        }
    }
}

impl Batcher<Window, TextBatch> for TextBatcher {
    fn batch(&self, items: Vec<Window>, device: &Device) -> TextBatch {
        let length = items.first().map_or(0, Window::length);
        let pairs = items.iter().flat_map(|window| {
            let shift = self.shift.map_or(0, |shift| shift.of(window.targets()));
            window.pairs(shift)
        });
        let (inputs, targets): (Vec<i32>, Vec<i32>) =
            pairs.map(|(input, target)| (input as i32, target)).unzip();

        let shape = [items.len(), length];
        let inputs = TensorData::new::<i32, _>(inputs, shape);
        let targets = TensorData::new::<i32, _>(targets, shape);
        (
            Tensor::from_data(inputs, device),
            Tensor::from_data(targets, device),
        )
    }
}
