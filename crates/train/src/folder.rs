//! The folder that a run leaves.
//!
//! While a run goes on, its files lie in `NAME.partial`, and become `NAME` in one move when it has
//! ended well: a folder under its own name is whole. The partial folder of a run that fails is
//! removed, unless there are checkpoints in it. One that a killed program left stays: the run can go on
//! there, and nothing else can begin under its name. Who writes to a folder holds a lock, which the system
//! takes back from a program that was killed.

use std::{
    cell::Cell,
    fs::{self, File, TryLockError},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{checkpoint::Checkpoints, error::TrainError};

/// Held by whoever writes to a folder.
const LOCK: &str = "lock";

/// The folder of a run under way. Dropped before [`finish`](Self::finish), it is removed, unless it has checkpoints.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    partial: PathBuf,
    /// None when the run is over.
    lock: Option<File>,
    /// Whether this is a run that was over, to which nothing has been written since.
    is_as_it_was: Cell<bool>,
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
        let (path, partial) = paths(path)?;
        check_free(&path)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(TrainError::file(parent))?;
        }
        // Whoever makes the folder has it: this fails if it is there.
        match fs::create_dir(&partial) {
            Ok(()) => Self::locked(path, partial),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // Locked, it is of a run that is under way.
                lock(&partial)?;
                Err(TrainError::RunKilled(partial))
            }
            Err(error) => Err(TrainError::file(&partial)(error)),
        }
    }

    /// Goes on in the folder of a run that was killed, was stopped, or is to be trained further; begins one, if there is
    /// none.
    ///
    /// ```
    /// # let parent = tempfile::tempdir().unwrap();
    /// # let path = parent.path().join("run");
    /// use stovepipe_train::RunFolder;
    ///
    /// let folder = RunFolder::resume(&path)?; // there is none yet
    /// assert!(RunFolder::resume(&path).is_err()); // in use
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If another run is under way there, `path` holds other files, or it cannot be written.
    pub fn resume(path: &Path) -> Result<Self, TrainError> {
        let path = &under_way(path);
        let (own, partial) = paths(path)?;
        if partial.exists() {
            check_free(&own)?;
            return Self::locked(own, partial);
        }
        if Checkpoints::of(&own).list()?.is_empty() {
            return Self::create(path);
        }
        fs::rename(&own, &partial).map_err(TrainError::file(&own))?;
        let folder = Self::locked(own, partial)?;
        folder.is_as_it_was.set(true);
        Ok(folder)
    }

    /// Where the files of the run that `path` names lie now, whether it is over or not.
    ///
    /// ```
    /// # let parent = tempfile::tempdir().unwrap();
    /// # let path = parent.path().join("run");
    /// use stovepipe_train::RunFolder;
    ///
    /// assert_eq!(RunFolder::find(&path), None);
    /// let folder = RunFolder::create(&path)?;
    /// assert_eq!(RunFolder::find(&path), Some(folder.file("")));
    /// folder.write("notes.txt", b"all went well")?;
    /// assert_eq!(RunFolder::find(&folder.finish()?), Some(path));
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    #[must_use]
    pub fn find(path: &Path) -> Option<PathBuf> {
        let (path, partial) = paths(&under_way(path)).ok()?;
        [partial, path].into_iter().find(|path| path.is_dir())
    }

    fn locked(path: PathBuf, partial: PathBuf) -> Result<Self, TrainError> {
        let lock = Some(lock(&partial)?);
        Ok(Self {
            path,
            partial,
            lock,
            is_as_it_was: Cell::new(false),
        })
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
        self.is_as_it_was.set(false);
        let file = self.file(name);
        // The file is either as it was or whole, whenever the run is ended.
        let beside = self.file(&format!("{name}.new"));
        let written = File::create(&beside).and_then(|mut new| {
            new.write_all(content)?;
            new.sync_all()?;
            fs::rename(&beside, &file)
        });
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.map_err(TrainError::file(&file))
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
        self.is_as_it_was.set(false);
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
        // Not every system moves a folder with an open file in it; and whatever happens from here on, the files stay.
        self.lock = None;
        check_free(&self.path)?;
        let lock = self.file(LOCK);
        fs::remove_file(&lock).map_err(TrainError::file(&lock))?;
        fs::rename(&self.partial, &self.path).map_err(TrainError::file(&self.path))?;
        Ok(self.path.clone())
    }

    /// The run's checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::of(&self.partial)
    }

    /// Keeps the first lines of a file, so many of them, if there is one.
    pub(crate) fn keep_lines(&self, name: &str, lines: usize) -> Result<(), TrainError> {
        let file = self.file(name);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            text => text.map_err(TrainError::file(&file))?,
        };
        let kept: String = text.split_inclusive('\n').take(lines).collect();
        match kept == text {
            true => Ok(()),
            false => self.write(name, kept.as_bytes()),
        }
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
        let is_worth_keeping = || {
            let checkpoints = self.checkpoints().list();
            checkpoints.is_ok_and(|checkpoints| !checkpoints.is_empty())
        };
        if self.lock.is_none() {
            return;
        }
        if self.is_as_it_was.get() {
            self.lock = None;
            let _ = fs::remove_file(self.file(LOCK));
            let _ = fs::rename(&self.partial, &self.path);
        } else if !is_worth_keeping() {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// A run's path without a slash at the end, which would put the partial folder inside, and the partial folder.
fn paths(path: &Path) -> Result<(PathBuf, PathBuf), TrainError> {
    let path: PathBuf = path.components().collect();
    match partial_of(&path) {
        Some(partial) => Ok((path, partial)),
        None => Err(TrainError::FolderInUse(path)),
    }
}

/// `NAME` for the `NAME.partial` of a run under way, which is what is seen of it.
fn under_way(path: &Path) -> PathBuf {
    match path.extension().is_some_and(|ending| ending == "partial") {
        true if path.is_dir() => path.with_extension(""),
        _ => path.to_owned(),
    }
}

/// The lock of a folder, which nobody else has then.
fn lock(folder: &Path) -> Result<File, TrainError> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(TrainError::file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TrainError::RunUnderWay(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(TrainError::file(&path)(error)),
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
