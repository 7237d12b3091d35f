//! The format of a file, by its first bytes.

use std::{fs::File, io::Read, path::Path};

use crate::error::TrainError;

/// The first bytes of a ZIP archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// The number at the start of files of PyTorch before 1.6, in a pickle.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
/// Bytes to look at.
const BYTES: u64 = 32;

/// A format of weights.
pub(super) enum FileFormat {
    Safetensors,
    PyTorch(Container),
}

/// How PyTorch packs files.
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
        } else if bytes.get(8) == Some(&b'{') {
            // After the length of the header.
            Ok(Self::Safetensors)
        } else {
            let reason = "neither safetensors nor a file of PyTorch's torch.save";
            Err(TrainError::format(path, reason))
        }
    }
}
