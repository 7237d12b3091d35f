use std::{fmt, ops::Range, sync::Arc};

use burn::data::dataset::{Dataset, DatasetError};

use crate::TextError;

/// The target where there is nothing to predict. A loss must not count it.
pub const PADDING: i32 = -1;

/// A run of tokens cut into windows of one length, a Burn [`Dataset`] of [`Window`]s.
///
/// A window is input tokens, and as targets the tokens after each. Every token but the run's first is the target of one
/// window. The tokens are held once, however many windows and clones there are.
///
/// # Example
///
/// ```
/// use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
/// use burn::tensor::{Device, TensorData};
/// use stovepipe_text::{TextBatcher, Windows};
///
/// let windows = Windows::new(vec![10, 11, 12, 13, 14, 15], 3)?;
/// assert_eq!(windows.len(), 2);
/// let both = windows.get_many(vec![0, 1])?;
/// let (inputs, targets) = TextBatcher::default().batch(both, &Device::default());
/// let rows = |tensor: burn::tensor::Tensor<2, burn::tensor::Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
/// assert_eq!(rows(inputs), [10, 11, 12, 13, 14, 0]);
/// assert_eq!(rows(targets), [11, 12, 13, 14, 15, -1]); // the last one is padding
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Windows {
    run: Arc<Run>,
}

/// Tokens, and how they are cut.
struct Run {
    tokens: Arc<[u32]>,
    /// Those of the run.
    range: Range<usize>,
    /// Input tokens of a window.
    length: usize,
    /// From the first token of a window to that of the next, `length` or less.
    stride: usize,
}

impl Run {
    fn tokens(&self) -> &[u32] {
        &self.tokens[self.range.clone()]
    }

    /// How many tokens are targets.
    fn targets(&self) -> usize {
        self.range.len() - 1
    }

    fn windows(&self) -> usize {
        let after_first = self.targets().saturating_sub(self.length);
        1 + after_first.div_ceil(self.stride)
    }
}

impl Windows {
    /// Cuts `tokens` into windows of `length` input tokens, one after the other. The last one may have fewer targets; the
    /// rest of it is padding.
    ///
    /// # Errors
    ///
    /// If `length` is 0, or there is not one whole window: `length` tokens and one more.
    ///
    /// # Example
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_text::Windows;
    ///
    /// assert_eq!(Windows::new(vec![7; 101], 10)?.len(), 10);
    /// assert_eq!(Windows::new(vec![7; 102], 10)?.len(), 11);
    /// assert!(Windows::new(vec![7; 10], 10).is_err());
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn new(tokens: impl Into<Arc<[u32]>>, length: usize) -> Result<Self, TextError> {
        let tokens = tokens.into();
        let range = 0..tokens.len();
        Self::of_part(tokens, range, length, "text")
    }

    /// The windows of a part of the tokens, which `part` names.
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
        let run = Run {
            tokens,
            range,
            length,
            stride: length,
        };
        Ok(Self { run: run.into() })
    }

    /// Has each window begin half a window after the one before it. Its first half is there to be read only: these tokens are
    /// targets of the windows before, and here padding.
    ///
    /// So each token, but for those of the first window, is predicted from half a window or more. It takes twice the time, for
    /// a perplexity that says more of the model and less of the cuts.
    ///
    /// # Example
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_text::Windows;
    ///
    /// let windows = Windows::new(vec![7; 101], 10)?;
    /// assert_eq!((windows.len(), windows.targets()), (10, 100));
    /// let overlapping = windows.overlapping();
    /// assert_eq!((overlapping.len(), overlapping.targets()), (19, 100));
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn overlapping(&self) -> Self {
        let run = Run {
            tokens: self.run.tokens.clone(),
            range: self.run.range.clone(),
            length: self.run.length,
            stride: self.run.length.div_ceil(2),
        };
        Self { run: run.into() }
    }

    /// The tokens of the run.
    ///
    /// ```
    /// let windows = stovepipe_text::Windows::new(vec![1, 2, 3], 2)?;
    /// assert_eq!(windows.tokens(), [1, 2, 3]);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.run.tokens()
    }

    /// How many tokens are targets, each once: all but the first.
    ///
    /// ```
    /// assert_eq!(stovepipe_text::Windows::new(vec![1, 2, 3], 2)?.targets(), 2);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn targets(&self) -> usize {
        self.run.targets()
    }

    /// Input tokens of a window.
    ///
    /// ```
    /// assert_eq!(stovepipe_text::Windows::new(vec![1, 2, 3], 2)?.length(), 2);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn length(&self) -> usize {
        self.run.length
    }
}

/// Without the tokens.
impl fmt::Debug for Windows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Windows");
        shown.field("tokens", &self.run.range.len());
        shown.field("length", &self.run.length);
        shown.field("windows", &self.run.windows());
        shown.finish_non_exhaustive()
    }
}

impl Dataset<Window> for Windows {
    fn get(&self, index: usize) -> Result<Window, DatasetError> {
        let windows = self.run.windows();
        assert!(
            index < windows,
            "window {index} of {windows} is out of bounds"
        );
        let run = self.run.clone();
        Ok(Window { run, index })
    }

    fn len(&self) -> usize {
        self.run.windows()
    }
}

/// One window of [`Windows`]: a place among them. It copies no tokens.
#[derive(Clone)]
pub struct Window {
    run: Arc<Run>,
    index: usize,
}

impl Window {
    /// Its place among the windows, counted from 0.
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    ///
    /// let windows = stovepipe_text::Windows::new(vec![7; 101], 10)?;
    /// assert_eq!(windows.get(4)?.index(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many input tokens it has.
    pub(crate) fn length(&self) -> usize {
        self.run.length
    }

    /// How many tokens of its run are targets.
    pub(crate) fn targets(&self) -> usize {
        self.run.targets()
    }

    /// Its input tokens and their targets, when all windows begin `shift` tokens later. The run is a ring: after the last
    /// pair of a token and the next comes the first.
    pub(crate) fn pairs(&self, shift: usize) -> impl Iterator<Item = (u32, i32)> {
        let (tokens, targets) = (self.run.tokens(), self.run.targets());
        let begin = self.index * self.run.stride;
        let read_only = match self.index {
            0 => 0,
            _ => self.run.length - self.run.stride,
        };
        (0..self.run.length).map(move |place| {
            if begin + place >= targets {
                return (0, PADDING);
            }
            let at = (begin + place + shift) % targets;
            match place < read_only {
                true => (tokens[at], PADDING),
                false => (tokens[at], tokens[at + 1] as i32),
            }
        })
    }
}

/// Without the tokens.
impl fmt::Debug for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Window");
        shown.field("index", &self.index);
        shown.finish_non_exhaustive()
    }
}
