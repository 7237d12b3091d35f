//! The configuration.

use burn::{config::Config, store::KeyRemapper, tensor::Device};

use crate::{error::UNetError, layer::UNetLayer, network, torch};

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
        Ok(network::layers(self, device))
    }

    /// Renames the tensors of a PyTorch U-Net with torchgpipe's names, all of them weights of
    /// convolutions, to those of the layers from [`init`](Self::init).
    ///
    /// | PyTorch | here, without the names of enum variants |
    /// |---|---|
    /// | `encoder_{l}_encode_{i}_conv` | `{(B + 1) l + i}.conv` |
    /// | `bottleneck_0_{i}_conv` | `{(B + 1) depth + i}.conv` |
    /// | `decoder_{k}_decode_{i}_conv`, k counted from the bottom | `{(B + 1) (depth + k + 1) + i}.conv` |
    /// | `segment` | the last layer's `conv` |
    ///
    /// Use it with a store of Burn's and the adapter for PyTorch:
    ///
    /// ```
    /// use burn::{
    ///     store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore},
    ///     tensor::Device,
    /// };
    /// use stovepipe_unet::UNetConfig;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = UNetConfig::new(2, 5).with_depth(3);
    /// let mut layers = config.init(&Device::flex())?;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/unet_b2_c5_d3.safetensors");
    /// let mut store = SafetensorsStore::from_file(path)
    ///     .with_from_adapter(PyTorchToBurnAdapter)
    ///     .skip_enum_variants(true)
    ///     .remap(config.torch_keys())
    ///     .with_key_remapping("^weights/", ""); // the prefix in this file
    /// let loaded = layers.load_from(&mut store)?;
    /// assert_eq!((loaded.applied.len(), loaded.missing.len()), (15, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn torch_keys(&self) -> KeyRemapper {
        torch::keys(self)
    }

    fn check(&self) -> Result<(), UNetError> {
        // Beyond these bounds the count of parameters would overflow.
        let fits = |channels: usize| (1..=65_536).contains(&channels);
        match self {
            _ if !(1..=1000).contains(&self.convolutions) => {
                Err(UNetError::Convolutions(self.convolutions))
            }
            _ if !(2..=16_384).contains(&self.channels) => Err(UNetError::Channels(self.channels)),
            _ if !(1..=10).contains(&self.depth) => Err(UNetError::Depth(self.depth)),
            _ if !fits(self.input_channels) => Err(UNetError::InputChannels(self.input_channels)),
            _ if !fits(self.output_channels) => {
                Err(UNetError::OutputChannels(self.output_channels))
            }
            _ if !(0.0..1.0).contains(&self.dropout) => Err(UNetError::Dropout(self.dropout)),
            _ => Ok(()),
        }
    }
}
