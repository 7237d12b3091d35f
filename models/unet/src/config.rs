//! The configuration, and its layers.

use burn::{config::Config, tensor::Device};

use crate::{
    convolution::Convolution,
    error::UNetError,
    layer::UNetLayer,
    resize::{Down, Up},
    segment::Segment,
};

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

    /// Makes the layers: (B + 1) · depth in the encoder, B at the bottom, (B + 1) · depth in the decoder
    /// and one more. Each parameter is allocated on `device` on first use.
    ///
    /// # Errors
    ///
    /// [`UNetError`] if a setting is out of bounds.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::count_parameters;
    /// use stovepipe_unet::{UNetConfig, UNetError};
    ///
    /// let layers = UNetConfig::new(11, 128).init(&Device::flex())?;
    /// assert_eq!(layers.len(), 12 * 5 + 11 + 12 * 5 + 1);
    /// assert_eq!(count_parameters(&layers), 2_213_834_176); // none allocated yet
    ///
    /// let error = UNetConfig::new(0, 128).init(&Device::flex()).unwrap_err();
    /// assert_eq!(error, UNetError::Convolutions(0));
    /// # Ok::<(), UNetError>(())
    /// ```
    pub fn init(&self, device: &Device) -> Result<Vec<UNetLayer>, UNetError> {
        self.check()?;
        Ok(layers(self, device))
    }
}

fn layers(config: &UNetConfig, device: &Device) -> Vec<UNetLayer> {
    let width = |level: usize| config.channels << level; // of a level's skip
    let convolutions = |widths: [usize; 3]| {
        let steps = steps(widths, config.convolutions).into_iter();
        steps.map(|step| UNetLayer::Convolution(Convolution::new(step, config.dropout, device)))
    };
    let mut layers = Vec::new();
    let mut input = config.input_channels;
    for level in 0..config.depth {
        layers.extend(convolutions([input, width(level), width(level)]));
        layers.push(UNetLayer::Down(Down { level }));
        input = width(level);
    }
    // Narrow again at the end, since the next skip adds as many channels.
    layers.extend(convolutions([input, width(config.depth), input]));
    for level in (0..config.depth).rev() {
        layers.push(UNetLayer::Up(Up { level }));
        // Reads the level below and the skip. The output is as wide as the level above's skip.
        let (own, half) = (width(level), width(level) / 2);
        layers.extend(convolutions([2 * own, half, half]));
    }
    let channels = [width(0) / 2, config.output_channels];
    layers.push(UNetLayer::Segment(Segment::new(channels, device)));
    layers
}

/// The channels before and after each of a level's convolutions.
fn steps([input, inner, output]: [usize; 3], convolutions: usize) -> Vec<[usize; 2]> {
    let mut channels = vec![input];
    channels.extend(vec![inner; convolutions - 1]);
    channels.push(output);
    let pairs = channels.windows(2);
    pairs.map(|pair| [pair[0], pair[1]]).collect()
}
