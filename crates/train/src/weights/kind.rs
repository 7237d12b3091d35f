//! What a file is, told from its first bytes.

use std::{fs::File, io::Read, path::Path};

use crate::error::TrainError;

/// The first bytes of a ZIP archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// The number that begins what PyTorch before 1.6 wrote, as a pickle has it.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
/// As many bytes as tell.
const BYTES: u64 = 32;

/// A format that holds weights.
pub(super) enum Kind {
    Safetensors,
    PyTorch(Container),
}

/// How PyTorch packs what it saves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// Since 1.6.
    Zip,
    /// Pickles in a row, and numbers: since 0.1.10.
    Legacy,
}

impl Kind {
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
            let reason = "neither safetensors nor a file that PyTorch's torch.save wrote";
            Err(TrainError::format(path, reason))
        }
    }
}
