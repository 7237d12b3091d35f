use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
pub(crate) struct Skipped(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    /// In the order in which they were met.
    met: Vec<SkippedFile>,
    paths: BTreeSet<PathBuf>,
}

impl Skipped {
    /// Counts a file for which loading failed: an error if it is one too many.
    pub fn count(
        &self,
        path: &Path,
        error: ImagenetError,
        most: usize,
    ) -> Result<(), ImagenetError> {
        let mut files = self.files();
        if files.paths.contains(path) {
            return Ok(());
        }
        if most == 0 {
            return Err(error);
        }
        let (path, reason) = (path.to_owned(), reason(error));
        if files.met.len() >= most {
            return Err(ImagenetError::TooManySkipped { most, path, reason });
        }
        files.paths.insert(path.clone());
        files.met.push(SkippedFile { path, reason });
        Ok(())
    }

    /// Those after the first `known`, in the order in which they were met.
    pub fn after(&self, known: usize) -> Vec<SkippedFile> {
        let files = self.files();
        files.met.get(known..).unwrap_or_default().to_vec()
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
