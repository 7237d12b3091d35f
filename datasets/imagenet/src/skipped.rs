use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::ImagenetError;

/// A file that was skipped, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedFile {
    /// The file.
    pub path: PathBuf,
    /// Why it could not be read or decoded.
    pub reason: String,
}

/// The files that were skipped so far, each counted once. A clone counts with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped {
    files: Arc<Mutex<BTreeMap<PathBuf, String>>>,
}

impl Skipped {
    /// Counts a file for which loading failed: an error if it is one too many.
    pub fn count(
        &self,
        path: &Path,
        error: ImagenetError,
        most: usize,
    ) -> Result<(), ImagenetError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.contains_key(path) {
            return Ok(());
        }
        if most == 0 {
            return Err(error);
        }
        let (path, reason) = (path.to_owned(), reason(error));
        if files.len() >= most {
            return Err(ImagenetError::TooManySkipped { most, path, reason });
        }
        files.insert(path, reason);
        Ok(())
    }

    /// All of them, by name.
    pub fn files(&self) -> Vec<SkippedFile> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = |(path, reason): (&PathBuf, &String)| SkippedFile {
            path: path.clone(),
            reason: reason.clone(),
        };
        files.iter().map(file).collect()
    }
}

/// What is wrong, without the file's name.
fn reason(error: ImagenetError) -> String {
    match error {
        ImagenetError::Unreadable { source, .. } => source.to_string(),
        ImagenetError::Image { reason, .. } => reason,
        other => other.to_string(),
    }
}
