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

/// The files skipped so far, each counted once. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped(Arc<Mutex<SkippedFiles>>);

#[derive(Debug, Default)]
struct SkippedFiles {
    in_order: Vec<SkippedFile>,
    paths: BTreeSet<PathBuf>,
}

impl Skipped {
    /// Counts a file that could not be loaded: an error if more than `most` were counted.
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
        if files.in_order.len() >= most {
            return Err(ImagenetError::TooManySkipped(most, Box::new(error)));
        }
        let (path, reason) = (path.to_owned(), reason(error));
        files.paths.insert(path.clone());
        files.in_order.push(SkippedFile { path, reason });
        Ok(())
    }

    /// The files after the first `known`, in the order in which they were skipped.
    pub fn after(&self, known: usize) -> Vec<SkippedFile> {
        let files = self.files();
        files.in_order.get(known..).unwrap_or_default().to_vec()
    }

    fn files(&self) -> MutexGuard<'_, SkippedFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message of an error, without the file's path.
fn reason(error: ImagenetError) -> String {
    match error {
        ImagenetError::Unreadable(_, source) => source.to_string(),
        ImagenetError::Image(_, source) => source.to_string(),
        other => other.to_string(),
    }
}
