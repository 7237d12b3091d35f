//! Which classes a model takes for which others: `confusion.json`.

use serde::{Deserialize, Serialize};

/// How often samples of each class were predicted as each class.
///
/// ```
/// use stovepipe_report::Confusion;
///
/// let classes = ["cat", "dog"].map(str::to_owned);
/// let confusion = Confusion::new(classes.into(), [((0, 0), 3), ((0, 1), 1), ((1, 1), 4)]);
/// assert_eq!(confusion.accuracy(0), Some((4, 0.75)));
/// assert_eq!(confusion.samples(0, 1), 1);
/// assert_eq!(confusion.mistakes().len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// The names of the classes.
    pub classes: Vec<String>,
    /// All pairs that occurred.
    pub counts: Vec<PredictionCount>,
}

/// How many samples of a class were predicted as a class; both are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictionCount {
    /// The samples' class.
    pub label: usize,
    /// The predicted class.
    pub said: usize,
    /// The number of samples.
    pub samples: u64,
}

impl Confusion {
    /// The counts of classes, by label and prediction.
    #[must_use]
    pub fn new(
        classes: Vec<String>,
        counts: impl IntoIterator<Item = ((usize, usize), u64)>,
    ) -> Self {
        let count = |((label, said), samples)| PredictionCount {
            label,
            said,
            samples,
        };
        let counts = counts.into_iter().map(count).collect();
        Self { classes, counts }
    }

    /// How many samples of one class were predicted as another.
    #[must_use]
    pub fn samples(&self, label: usize, said: usize) -> u64 {
        let own = |count: &&PredictionCount| (count.label, count.said) == (label, said);
        self.counts.iter().filter(own).map(|own| own.samples).sum()
    }

    /// The samples of a class, and the share of them that is right; `None` if there are no samples.
    #[must_use]
    pub fn accuracy(&self, class: usize) -> Option<(u64, f64)> {
        let own = self.counts.iter().filter(|count| count.label == class);
        let all: u64 = own.map(|count| count.samples).sum();
        let right = self.samples(class, class);
        (all > 0).then(|| (all, right as f64 / all as f64))
    }

    /// The wrong predictions, the most frequent first.
    #[must_use]
    pub fn mistakes(&self) -> Vec<PredictionCount> {
        let wrong = self.counts.iter().filter(|count| count.label != count.said);
        let mut wrong: Vec<_> = wrong.copied().collect();
        wrong.sort_by_key(|count| std::cmp::Reverse(count.samples));
        wrong
    }
}
