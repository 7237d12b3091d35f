//! Errors of configurations.

/// A configuration that is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UNetError {
    /// A level without a convolution would not change the number of channels.
    #[error("the number of convolutions of a level must be from 1 to 1000, not {0}")]
    Convolutions(usize),
    /// The last convolutions have half as many.
    #[error("the number of base channels must be from 2 to 16384, not {0}")]
    Channels(usize),
    /// Each level has twice the channels of the one above.
    #[error("the depth must be from 1 to 10, not {0}")]
    Depth(usize),
    /// The input has no channels, or too many.
    #[error("an image must have from 1 to 65536 channels, not {0}")]
    InputChannels(usize),
    /// The output has no channels, or too many.
    #[error("the output must have from 1 to 65536 channels, not {0}")]
    OutputChannels(usize),
    /// At 1, everything would be dropped.
    #[error("the probability of dropout must be at least 0 and less than 1, not {0:?}")]
    Dropout(f64),
}
