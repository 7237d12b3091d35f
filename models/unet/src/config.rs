//! The configuration.

use burn::config::Config;

use crate::error::UNetError;

/// U-Net(B, C): B convolutions a level, C channels at the first.
///
/// Counts of parameters: (5, 64) 233M, (6, 72) 362M, (11, 128) 2.21B, (24, 128) 4.99B, (24, 160) 7.80B,
/// (48, 160) 15.8B.
#[derive(Config, Debug, PartialEq)]
pub struct UNetConfig {
    /// B, the number of convolutions of each level of the encoder, and of the decoder.
    pub convolutions: usize,
    /// C, the channels of the first level; each level below has twice as many.
    pub channels: usize,
    /// The number of times that the map is halved.
    #[config(default = 5)]
    pub depth: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub input_channels: usize,
    /// The values of each pixel of the output, such as a logit.
    #[config(default = 1)]
    pub output_channels: usize,
    /// The probability that training drops a channel.
    #[config(default = 0.1)]
    pub dropout: f64,
}

impl UNetConfig {
    pub(crate) fn check(&self) -> Result<(), UNetError> {
        // Beyond these bounds the count of parameters would overflow.
        let fits = |channels: usize| (1..=65_536).contains(&channels);
        let &Self {
            convolutions: b,
            channels: c,
            depth,
            input_channels: from,
            output_channels: to,
            dropout,
        } = self;
        let bounds = [
            ((1..=1000).contains(&b), UNetError::Convolutions(b)),
            ((2..=16_384).contains(&c), UNetError::Channels(c)),
            ((1..=10).contains(&depth), UNetError::Depth(depth)),
            (fits(from), UNetError::InputChannels(from)),
            (fits(to), UNetError::OutputChannels(to)),
            ((0.0..1.0).contains(&dropout), UNetError::Dropout(dropout)),
        ];
        let wrong = bounds.into_iter().find(|(fits, _)| !fits);
        wrong.map_or(Ok(()), |(_, error)| Err(error))
    }
}
