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

/// Makes the layers of a checked configuration.
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
