//! The folder that a run leaves.
//!
//! While a run goes on, its files lie in `NAME.partial`, and become `NAME` in one move when it has
//! ended well: a folder under its own name is whole. The partial folder of a run that fails is
//! removed. One that a killed program left stays, for whoever wants to look, and keeps the name
//! from being used.

use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::error::TrainError;

/// The folder of a run under way. Dropped before [`finish`](Self::finish), it is removed.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    partial: PathBuf,
    finished: bool,
}

impl RunFolder {
    /// Begins a folder at `path`.
    ///
    /// ```
    /// # let parent = tempfile::tempdir().unwrap();
    /// # let path = parent.path().join("run");
    /// use stovepipe_train::RunFolder;
    ///
    /// let folder = RunFolder::create(&path)?;
    /// folder.write("notes.txt", b"all went well")?;
    /// assert!(!path.exists());
    /// folder.finish()?;
    /// assert!(path.join("notes.txt").exists());
    /// assert!(RunFolder::create(&path).is_err()); // in use
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If `path` is there and not an empty folder, another run is under way to it, or it cannot be
    /// written.
    pub fn create(path: &Path) -> Result<Self, TrainError> {
        // Without a slash at the end, which would put the partial folder inside.
        let path: PathBuf = path.components().collect();
        let partial = partial_of(&path).ok_or_else(|| TrainError::FolderInUse(path.clone()))?;
        check_free(&path)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(TrainError::file(parent))?;
        }
        // Whoever makes the folder has it: this fails if it is there.
        match fs::create_dir(&partial) {
            Ok(()) => Ok(Self {
                path,
                partial,
                finished: false,
            }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(TrainError::RunUnderWay(partial))
            }
            Err(error) => Err(TrainError::file(&partial)(error)),
        }
    }

    /// `PARENT/NAME-1`, or with the first number that is free.
    ///
    /// ```
    /// use std::path::Path;
    /// use stovepipe_train::RunFolder;
    ///
    /// let path = RunFolder::next(Path::new("nowhere"), "train");
    /// assert_eq!(path, Path::new("nowhere/train-1"));
    /// ```
    #[must_use]
    pub fn next(parent: &Path, name: &str) -> PathBuf {
        let numbered = |number: u32| parent.join(format!("{name}-{number}"));
        let is_free =
            |path: &PathBuf| !path.exists() && partial_of(path).is_some_and(|path| !path.exists());
        (1..)
            .map(numbered)
            .find(is_free)
            .unwrap_or_else(|| parent.join(name))
    }

    /// Where the run will lie.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a file of the run lies while the run goes on.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.partial.join(name)
    }

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), TrainError> {
        let file = self.file(name);
        fs::write(&file, content).map_err(TrainError::file(&file))
    }

    /// Writes a value as TOML.
    ///
    /// # Errors
    ///
    /// If it has no form in TOML, or cannot be written.
    pub fn write_toml(&self, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
        let text = toml::to_string_pretty(value).map_err(|error| self.format(name, &error))?;
        self.write(name, text.as_bytes())
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    ///
    /// If it has no form in JSON, or cannot be written.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
        let text =
            serde_json::to_string_pretty(value).map_err(|error| self.format(name, &error))?;
        self.write(name, (text + "\n").as_bytes())
    }

    /// Appends a line of JSON.
    ///
    /// # Errors
    ///
    /// If it has no form in JSON, or cannot be written.
    pub fn append_json_line(&self, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
        let line = serde_json::to_string(value).map_err(|error| self.format(name, &error))?;
        let file = self.file(name);
        let opened = fs::OpenOptions::new().create(true).append(true).open(&file);
        opened
            .and_then(|mut opened| writeln!(opened, "{line}"))
            .map_err(TrainError::file(&file))
    }

    /// Gives the folder its name.
    ///
    /// # Errors
    ///
    /// If something has taken the name meanwhile.
    pub fn finish(mut self) -> Result<PathBuf, TrainError> {
        check_free(&self.path)?;
        fs::rename(&self.partial, &self.path).map_err(TrainError::file(&self.path))?;
        self.finished = true;
        Ok(self.path.clone())
    }

    fn format(&self, name: &str, error: &dyn std::error::Error) -> TrainError {
        TrainError::Format {
            path: self.file(name),
            reason: error.to_string(),
        }
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// `NAME.partial` beside `NAME`; none if the path ends in no name.
fn partial_of(path: &Path) -> Option<PathBuf> {
    let mut name = path.file_name()?.to_owned();
    name.push(".partial");
    Some(path.with_file_name(name))
}

fn check_free(path: &Path) -> Result<(), TrainError> {
    let in_use = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(_) if path.is_file() => true,
        Err(error) => return Err(TrainError::file(path)(error)),
    };
    match in_use {
        true => Err(TrainError::FolderInUse(path.to_owned())),
        false => Ok(()),
    }
}
