//! The folder that a run leaves.
//!
//! While a run goes on, its files lie in `NAME.partial`, and become `NAME` in one move when it has
//! ended well: a folder under its own name is whole. What a failed run wrote stays in
//! `NAME.partial` until the next run of that name.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::error::TrainError;

/// The folder of a run under way.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    partial: PathBuf,
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
    /// If `path` is there and not an empty folder, or cannot be written.
    pub fn create(path: &Path) -> Result<Self, TrainError> {
        check_free(path)?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(TrainError::file(&partial))?;
        }
        fs::create_dir_all(&partial).map_err(TrainError::file(&partial))?;
        let path = path.to_owned();
        Ok(Self { path, partial })
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
        (1..)
            .map(numbered)
            .find(|path| !path.exists())
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
    pub fn finish(self) -> Result<PathBuf, TrainError> {
        check_free(&self.path)?;
        fs::rename(&self.partial, &self.path).map_err(TrainError::file(&self.path))?;
        Ok(self.path)
    }

    fn format(&self, name: &str, error: &dyn std::error::Error) -> TrainError {
        TrainError::Format {
            path: self.file(name),
            reason: error.to_string(),
        }
    }
}

fn check_free(path: &Path) -> Result<(), TrainError> {
    let in_use = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => true,
        Err(error) => return Err(TrainError::file(path)(error)),
    };
    match in_use {
        true => Err(TrainError::FolderInUse(path.to_owned())),
        false => Ok(()),
    }
}
