//! Runs of layers that are recomputed.

use std::{fmt, ops::Range, str::FromStr, sync::Arc};

use thiserror::Error;

/// Runs of layers that are recomputed, each as a whole; in order, and none is empty.
///
/// A forward pass keeps the input of each instead of its activations. It runs again, with all
/// activations, when the backward pass comes to its end; the last one of a stage before the stage waits
/// for the gradient.
///
/// ```
/// use stovepipe_schedule::Segments;
///
/// let segments = Segments::new([0..4, 7..8])?;
/// assert_eq!(segments.to_string(), "0-3,7");
/// assert_eq!("0-3,7".parse(), Ok(segments));
/// for wrong in ["3-1", "0-3,2-5", "0-3,", "0-x"] {
///     assert!(wrong.parse::<Segments>().is_err());
/// }
/// # Ok::<(), stovepipe_schedule::SegmentsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segments(Arc<[Range<usize>]>);

impl Segments {
    /// Each range has the first layer of a run and the one after its last.
    ///
    /// # Errors
    ///
    /// If there are none, or one is empty or begins before the end of the one before.
    pub fn new(runs: impl IntoIterator<Item = Range<usize>>) -> Result<Self, SegmentsError> {
        let runs: Arc<[_]> = runs.into_iter().collect();
        if runs.is_empty() {
            return Err(SegmentsError::None);
        }
        if let Some(run) = runs.iter().find(|run| run.is_empty()) {
            let (first, last) = (run.start, run.end.saturating_sub(1));
            return Err(SegmentsError::Empty { first, last });
        }
        for pair in runs.windows(2) {
            if pair[1].start < pair[0].end {
                return Err(SegmentsError::Overlap {
                    first: text(&pair[0]),
                    second: text(&pair[1]),
                });
            }
        }
        Ok(Self(runs))
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Checks that a model has all of these layers.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn check(&self, layers: usize) -> Result<(), SegmentsError> {
        match self.0.last() {
            Some(last) if last.end > layers => Err(SegmentsError::Beyond {
                run: text(last),
                layers,
            }),
            _ => Ok(()),
        }
    }

    /// The parts of them in these layers.
    pub(crate) fn within(&self, layers: &Range<usize>) -> Vec<Range<usize>> {
        let cut = |run: &Range<usize>| run.start.max(layers.start)..run.end.min(layers.end);
        let cut = self.0.iter().map(cut);
        cut.filter(|run| !run.is_empty()).collect()
    }
}

/// The first layer of a run and the last.
fn text(run: &Range<usize>) -> String {
    match run.len() {
        1 => run.start.to_string(),
        _ => format!("{}-{}", run.start, run.end - 1),
    }
}

impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<_> = self.0.iter().map(text).collect();
        f.write_str(&runs.join(","))
    }
}

/// Layers that cannot be recomputed together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum SegmentsError {
    /// There are none.
    #[error("there are no layers to recompute: use recompute never")]
    None,
    /// A part of a list is not the first and the last layer.
    #[error("`{0}` is not a layer or a first and a last layer, as in 0-3")]
    NotLayers(String),
    /// The last layer comes before the first.
    #[error("layers {first} to {last} are none: give the first and the last layer, as in 0-3")]
    Empty { first: usize, last: usize },
    /// Two have a layer in common, or are not in order.
    #[error(
        "layers {second} overlap layers {first} or come before them: give layers in order, each once"
    )]
    Overlap { first: String, second: String },
    /// The model has fewer layers.
    #[error("layers {run} are to be recomputed, but the model has {layers}: its last is {}", layers - 1)]
    Beyond { run: String, layers: usize },
}

impl FromStr for Segments {
    type Err = SegmentsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let run = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok();
            let numbers = number(first).zip(number(last));
            let run = numbers.and_then(|(first, last)| Some(first..last.checked_add(1)?));
            run.ok_or_else(|| SegmentsError::NotLayers(part.to_owned()))
        };
        Self::new(text.split(',').map(run).collect::<Result<Vec<_>, _>>()?)
    }
}
