//! Errors of configurations.

/// A configuration that is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TransformerError {
    /// The size of this name is 0, or too large.
    #[error("{0} must be from 1 to {most}, not {1}", most = TransformerError::MOST)]
    Size(&'static str, usize),
    /// All heads have the same width.
    #[error("{heads} heads cannot share a width of {width}: it must be a multiple of them")]
    Heads {
        /// The width of the model.
        width: usize,
        /// The number of heads.
        heads: usize,
    },
    /// Patches cover the image.
    #[error("an image of {image}×{image} cannot be cut into patches of {patch}×{patch}")]
    Patches {
        /// Height and width of the image.
        image: usize,
        /// Height and width of a patch.
        patch: usize,
    },
    /// The probability of this name is negative or NaN; at 1, everything would be dropped.
    #[error("the probability of {0} must be at least 0 and less than 1, not {1:?}")]
    Probability(&'static str, f64),
}

impl TransformerError {
    /// The largest size.
    const MOST: usize = 1 << 24;

    pub(crate) fn check_sizes(sizes: &[(&'static str, usize)]) -> Result<(), Self> {
        let mut sizes = sizes.iter();
        let wrong = sizes.find(|(_, size)| !(1..=Self::MOST).contains(size));
        wrong.map_or(Ok(()), |&(what, found)| Err(Self::Size(what, found)))
    }

    pub(crate) fn check_probabilities(all: &[(&'static str, f64)]) -> Result<(), Self> {
        let wrong = all.iter().find(|(_, found)| !(0.0..1.0).contains(found));
        wrong.map_or(Ok(()), |&(what, found)| Err(Self::Probability(what, found)))
    }
}
