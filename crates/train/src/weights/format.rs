//! What a file of weights is: its format, by its first bytes, and its convention.

use std::{collections::HashMap, fs::File, io::Read, path::Path};

use burn::store::burn_pack::MAGIC_NUMBER;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// Keys and values of a file's metadata.
pub(super) type FileMetadata = HashMap<String, String>;

/// The key for a file's convention, and its values.
pub(super) const FORMAT: &str = "format";
pub(super) const BURN: &str = "burn";
pub(super) const PYTORCH: &str = "pt";
/// The key for the checksum of the weights that a file leaves out.
pub(super) const BASE: &str = "base-sha256";

/// The first bytes of a ZIP archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// The number at the start of files of PyTorch before 1.6, in a pickle.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
/// The first bytes of a file of Burn.
const BURNPACK: [u8; 4] = MAGIC_NUMBER.to_le_bytes();
const BYTES: u64 = 32;

pub(super) enum FileFormat {
    Safetensors,
    Burnpack,
    PyTorch(Container),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// Since 1.6.
    Zip,
    /// Pickles and numbers: since 0.1.10.
    Legacy,
}

impl FileFormat {
    pub(super) fn of(path: &Path) -> Result<Self, TrainError> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(TrainError::file(path))?;
        (file.take(BYTES).read_to_end(&mut bytes)).map_err(TrainError::file(path))?;
        if bytes.starts_with(ZIP) {
            Ok(Self::PyTorch(Container::Zip))
        } else if bytes.windows(LEGACY.len()).any(|window| window == LEGACY) {
            Ok(Self::PyTorch(Container::Legacy))
        } else if bytes.starts_with(&BURNPACK) {
            Ok(Self::Burnpack)
        } else if bytes.get(8) == Some(&b'{') {
            // After the length of the header.
            Ok(Self::Safetensors)
        } else {
            let reason = "neither safetensors nor burnpack nor a file of PyTorch's torch.save";
            Err(TrainError::format(path, reason))
        }
    }
}

/// How a file lays out what Burn and PyTorch lay out differently.
///
/// PyTorch's linear layers have weights `[out, in]`, Burn's `[in, out]`. PyTorch's norms have
/// `weight` and `bias`, Burn's `gamma` and `beta`. Only PyTorch's batch norms have
/// `num_batches_tracked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Convention {
    /// Burn's, as [`save_model`](crate::save_model) writes it.
    Burn,
    /// PyTorch's.
    PyTorch,
}
