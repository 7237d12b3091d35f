//! Turns a configuration into a list of layers.

use burn::tensor::Device;

use crate::{
    config::UNetConfig, convolution::Convolution, down::Down, error::UNetError, layer::UNetLayer,
    segment::Segment, up::Up,
};

impl UNetConfig {
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

/// The channels before, between and after a level's convolutions.
struct Widths {
    input: usize,
    inner: usize,
    output: usize,
}

/// Makes the layers of a checked configuration.
fn layers(config: &UNetConfig, device: &Device) -> Vec<UNetLayer> {
    let convolutions = |widths: Widths| {
        let steps = steps(widths, config.convolutions).into_iter();
        steps.map(|step| UNetLayer::Convolution(Convolution::new(step, config.dropout, device)))
    };
    let mut layers = Vec::new();
    for level in 0..config.depth {
        layers.extend(convolutions(encoder_widths(config, level)));
        layers.push(UNetLayer::Down(Down::new(level)));
    }
    layers.extend(convolutions(bottom_widths(config)));
    for level in (0..config.depth).rev() {
        layers.push(UNetLayer::Up(Up::new(level)));
        layers.extend(convolutions(decoder_widths(config, level)));
    }
    let channels = [decoder_widths(config, 0).output, config.output_channels];
    layers.push(UNetLayer::Segment(Segment::new(channels, device)));
    layers
}

/// The channels before and after each of a level's convolutions.
fn steps(widths: Widths, convolutions: usize) -> Vec<[usize; 2]> {
    let mut channels = vec![widths.input];
    channels.extend(vec![widths.inner; convolutions - 1]);
    channels.push(widths.output);
    let pairs = channels.windows(2);
    pairs.map(|pair| [pair[0], pair[1]]).collect()
}

/// The channels of a level's skip.
fn width(config: &UNetConfig, level: usize) -> usize {
    config.channels << level
}

fn encoder_widths(config: &UNetConfig, level: usize) -> Widths {
    let above = level.checked_sub(1).map(|above| width(config, above));
    let (input, inner) = (above.unwrap_or(config.input_channels), width(config, level));
    Widths {
        input,
        inner,
        output: inner,
    }
}

/// Narrow again at the end, since the next skip adds as many channels.
fn bottom_widths(config: &UNetConfig) -> Widths {
    let [input, inner] = [config.depth - 1, config.depth].map(|level| width(config, level));
    Widths {
        input,
        inner,
        output: input,
    }
}

/// Reads the level below and the skip. Its output is as wide as the level above's skip.
fn decoder_widths(config: &UNetConfig, level: usize) -> Widths {
    let own = width(config, level);
    let (input, inner) = (2 * own, own / 2);
    Widths {
        input,
        inner,
        output: inner,
    }
}
