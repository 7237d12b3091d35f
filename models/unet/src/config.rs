//! The numbers that a user chooses.

use burn::{config::Config, store::KeyRemapper, tensor::Device};

use crate::{layer::UNetLayer, network, torch};

/// There is no such U-Net.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UNetError {
    /// A level without a convolution would not change the number of channels.
    #[error("the number of convolutions of a level must be from 1 to 1000, not {0}")]
    Convolutions(usize),
    /// The last convolutions have half of them.
    #[error("the number of base channels must be from 2 to 16384, not {0}")]
    Channels(usize),
    /// Each level has twice the channels of the one above.
    #[error("the depth must be from 1 to 10, not {0}")]
    Depth(usize),
    /// There is nothing to read.
    #[error("an image must have from 1 to 65536 channels, not {0}")]
    InputChannels(usize),
    /// There is nothing to say.
    #[error("the output must have from 1 to 65536 channels, not {0}")]
    OutputChannels(usize),
    /// Everything would be dropped.
    #[error("the probability of dropout must be at least 0 and less than 1, not {0}")]
    Dropout(f64),
}

/// U-Net(B, C): B convolutions a level, C channels at the first.
///
/// Counts of parameters: (5, 64) 233M, (6, 72) 362M, (11, 128) 2.21B, (24, 128) 4.99B, (24, 160) 7.80B,
/// (48, 160) 15.8B.
#[derive(Config, Debug, PartialEq)]
pub struct UNetConfig {
    /// B, the number of convolutions of each level on its way down, and again on its way up.
    pub convolutions: usize,
    /// C, the channels at the first level; each level below has twice as many.
    pub channels: usize,
    /// How often the map is halved.
    #[config(default = 5)]
    pub depth: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub input_channels: usize,
    /// What is said of each pixel: numbers without bounds, such as a logit each.
    #[config(default = 1)]
    pub output_channels: usize,
    /// The probability that training drops a channel.
    #[config(default = 0.1)]
    pub dropout: f64,
}

impl UNetConfig {
    /// Makes the layers: (B + 1) · depth on the way down, B at the bottom, (B + 1) · depth on the way up and
    /// one more. Each parameter is allocated on `device` when it is first used.
    ///
    /// # Errors
    ///
    /// [`UNetError`] if a number is out of its bounds.
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

    /// Renames the tensors of a PyTorch U-Net, as torchgpipe calls them, to those of the list of layers that
    /// [`init`](Self::init) makes. The only ones are the weights of convolutions.
    ///
    /// | PyTorch | here, without the names of enum variants |
    /// |---|---|
    /// | `encoder_{l}_encode_{i}_conv` | `{(B + 1) l + i}.conv` |
    /// | `bottleneck_0_{i}_conv` | `{(B + 1) depth + i}.conv` |
    /// | `decoder_{k}_decode_{i}_conv`, k counted from the bottom | `{(B + 1) (depth + k + 1) + i}.conv` |
    /// | `segment` | the last layer's `conv` |
    ///
    /// Give it to a store of Burn's with the adapter for PyTorch:
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
    ///     .with_key_remapping("^weights/", ""); // where this file keeps them
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
        // Beyond these bounds parameters could not be counted.
        let some = |number: usize| (1..=65_536).contains(&number);
        match self {
            _ if !(1..=1000).contains(&self.convolutions) => {
                Err(UNetError::Convolutions(self.convolutions))
            }
            _ if !(2..=16_384).contains(&self.channels) => Err(UNetError::Channels(self.channels)),
            _ if !(1..=10).contains(&self.depth) => Err(UNetError::Depth(self.depth)),
            _ if !some(self.input_channels) => Err(UNetError::InputChannels(self.input_channels)),
            _ if !some(self.output_channels) => {
                Err(UNetError::OutputChannels(self.output_channels))
            }
            _ if !(0.0..1.0).contains(&self.dropout) => Err(UNetError::Dropout(self.dropout)),
            _ => Ok(()),
        }
    }
}
