use std::{fmt, ops::Range, sync::Arc};

use burn::data::dataset::{Dataset, DatasetError};

use crate::TextError;

/// The target of positions without a prediction. The loss must ignore it.
pub const PADDING: i32 = -1;

/// Tokens cut into windows of one length, a Burn [`Dataset`] of [`TokenWindow`]s.
///
/// A window has input tokens, and as targets the tokens after each. Every token but the first is the target of one window.
/// Clones share the tokens.
///
/// ```
/// use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
/// use burn::tensor::{Device, TensorData};
/// use stovepipe_text::{TextBatcher, TokenWindows};
///
/// let windows = TokenWindows::new(vec![10, 11, 12, 13, 14, 15], 3)?;
/// assert_eq!((windows.len(), windows.length(), windows.targets()), (2, 3, 5));
/// assert_eq!(windows.get(1)?.index(), 1);
/// let both = windows.get_many(vec![0, 1])?;
/// let (inputs, targets) = TextBatcher::default().batch(both, &Device::default());
/// let rows = |tensor: burn::tensor::Tensor<2, burn::tensor::Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
/// assert_eq!(rows(inputs), [10, 11, 12, 13, 14, 0]);
/// assert_eq!(rows(targets), [11, 12, 13, 14, 15, -1]); // the last one is padding
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TokenWindows {
    layout: Arc<WindowLayout>,
}

/// Tokens, and how they are cut.
#[derive(Clone)]
struct WindowLayout {
    tokens: Arc<[u32]>,
    /// The part of the tokens that is cut.
    range: Range<usize>,
    /// Input tokens of a window.
    length: usize,
    /// The distance between the starts of two windows, at most `length`.
    stride: usize,
}

impl WindowLayout {
    fn tokens(&self) -> &[u32] {
        &self.tokens[self.range.clone()]
    }

    fn targets(&self) -> usize {
        self.range.len() - 1
    }

    fn windows(&self) -> usize {
        let after_first = self.targets().saturating_sub(self.length);
        1 + after_first.div_ceil(self.stride)
    }
}

impl TokenWindows {
    /// Cuts `tokens` into consecutive windows of `length` input tokens. The last window may end with padding.
    ///
    /// # Errors
    ///
    /// If `length` is 0, or there are not `length` tokens and one more.
    pub fn new(tokens: impl Into<Arc<[u32]>>, length: usize) -> Result<Self, TextError> {
        let tokens = tokens.into();
        let range = 0..tokens.len();
        Self::of_part(tokens, range, length, "text")
    }

    /// The windows of a range of the tokens. Errors name it `part`.
    pub(crate) fn of_part(
        tokens: Arc<[u32]>,
        range: Range<usize>,
        length: usize,
        part: &'static str,
    ) -> Result<Self, TextError> {
        if length == 0 {
            return Err(TextError::Setting {
                setting: "length",
                value: length.to_string(),
                range: "at least 1",
            });
        }
        if range.len() <= length {
            return Err(TextError::TooShort {
                part,
                tokens: range.len(),
                length,
            });
        }
        let layout = Arc::new(WindowLayout {
            tokens,
            range,
            length,
            stride: length,
        });
        Ok(Self { layout })
    }

    /// The same tokens in windows that overlap by half. The targets of the overlapping half are padding, since they are targets
    /// of the window before.
    ///
    /// So each token after the first window is predicted from at least half a window. This takes twice the time, and the
    /// perplexity depends less on where windows begin.
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    ///
    /// let windows = stovepipe_text::TokenWindows::new(vec![7; 101], 10)?;
    /// let overlapping = windows.overlapping();
    /// assert_eq!([windows.len(), overlapping.len()], [10, 19]);
    /// assert_eq!([windows.targets(), overlapping.targets()], [100, 100]);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn overlapping(&self) -> Self {
        let mut layout = WindowLayout::clone(&self.layout);
        layout.stride = layout.length.div_ceil(2);
        let layout = layout.into();
        Self { layout }
    }

    /// The tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.layout.tokens()
    }

    /// The number of targets: of all tokens but the first, each once.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.layout.targets()
    }

    /// The number of input tokens of a window.
    #[must_use]
    pub fn length(&self) -> usize {
        self.layout.length
    }
}

/// Without the tokens.
impl fmt::Debug for TokenWindows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("TokenWindows");
        shown.field("tokens", &self.layout.range.len());
        shown.field("length", &self.layout.length);
        shown.field("windows", &self.layout.windows());
        shown.finish_non_exhaustive()
    }
}

impl Dataset<TokenWindow> for TokenWindows {
    fn get(&self, index: usize) -> Result<TokenWindow, DatasetError> {
        let windows = self.layout.windows();
        let fits = index < windows;
        assert!(fits, "window {index} of {windows} is out of bounds");
        let layout = self.layout.clone();
        Ok(TokenWindow { layout, index })
    }

    fn len(&self) -> usize {
        self.layout.windows()
    }
}

/// One window of [`TokenWindows`]. It copies no tokens.
#[derive(Clone)]
pub struct TokenWindow {
    layout: Arc<WindowLayout>,
    index: usize,
}

impl TokenWindow {
    /// Its index, counted from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn length(&self) -> usize {
        self.layout.length
    }

    /// The number of targets of all windows.
    pub(crate) fn targets(&self) -> usize {
        self.layout.targets()
    }

    /// Its input tokens and their targets, with all windows `offset` tokens later. After the last pair of input and target
    /// comes the first.
    pub(crate) fn pairs(&self, offset: usize) -> impl Iterator<Item = (u32, i32)> {
        let (tokens, targets) = (self.layout.tokens(), self.layout.targets());
        let begin = self.index * self.layout.stride;
        // The first window overlaps with none.
        let overlap = self.index.min(1) * (self.layout.length - self.layout.stride);
        (0..self.layout.length).map(move |place| {
            if begin + place >= targets {
                return (0, PADDING);
            }
            let at = (begin + place + offset) % targets;
            let is_target = place >= overlap;
            let target = is_target.then(|| tokens[at + 1] as i32);
            (tokens[at], target.unwrap_or(PADDING))
        })
    }
}

/// Without the tokens.
impl fmt::Debug for TokenWindow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("TokenWindow");
        shown.field("index", &self.index);
        shown.finish_non_exhaustive()
    }
}
