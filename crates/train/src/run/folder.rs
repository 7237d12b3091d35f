//! The folder of a run's files.
//!
//! During a run, its files are in `NAME.partial`. At the end, the folder is renamed to `NAME`: a
//! folder under its own name is complete. If the run fails, the partial folder is removed, unless it
//! has checkpoints. The folder of a killed program stays, so that the run can resume. A lock keeps
//! two programs from writing to one folder; the system releases it if the program is killed.

use std::{
    cell::Cell,
    fs::{self, File, TryLockError},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{checkpoint::Checkpoints, error::TrainError};

/// The file that is locked.
const LOCK: &str = "lock";

/// The folder of a run. If it is dropped before [`finish`](Self::finish), it is removed, unless it has
/// checkpoints.
///
/// ```
/// # let parent = tempfile::tempdir().unwrap();
/// # let parent = parent.path();
/// use stovepipe_train::RunFolder;
///
/// let path = RunFolder::next(parent, "train"); // train-1
/// let folder = RunFolder::resume(&path)?; // there is none yet
/// folder.write("notes.txt", b"all went well")?;
/// assert!(RunFolder::create(&path).is_err() && RunFolder::resume(&path).is_err()); // in use
/// assert!(!path.exists());
/// assert_eq!(RunFolder::find(&path), Some(folder.file("")));
/// folder.finish()?;
/// assert!(path.join("notes.txt").exists());
/// assert_eq!(RunFolder::find(&path), Some(path));
/// assert_eq!(RunFolder::next(parent, "train"), parent.join("train-2"));
/// # Ok::<(), stovepipe_train::TrainError>(())
/// ```
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    partial: PathBuf,
    /// `None` when the run is over.
    lock: Option<File>,
    /// Whether the run was complete when it was opened, and nothing was written since.
    is_unchanged: Cell<bool>,
}

impl RunFolder {
    /// Creates a folder for `path`.
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
    /// If `path` exists and is not an empty folder, another run is using it, or it cannot be written.
    pub fn create(path: &Path) -> Result<Self, TrainError> {
        let (path, partial) = paths(path)?;
        check_free(&path)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(TrainError::file(parent))?;
        }
        // Only one program can create the folder.
        match fs::create_dir(&partial) {
            Ok(()) => Self::locked(path, partial),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // An error if another program holds the lock.
                lock(&partial)?;
                Err(TrainError::RunKilled(partial))
            }
            Err(error) => Err(TrainError::file(&partial)(error)),
        }
    }

    /// Opens the folder of a run that was killed or stopped, or that is to train further. Creates it
    /// if there is none.
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
    /// If another run is using it, `path` holds other files, or it cannot be written.
    pub fn resume(path: &Path) -> Result<Self, TrainError> {
        let path = &final_path(path);
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
        folder.is_unchanged.set(true);
        Ok(folder)
    }

    /// Where the files of the run `path` are now, whether it is over or not.
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
        let (path, partial) = paths(&final_path(path)).ok()?;
        [partial, path].into_iter().find(|path| path.is_dir())
    }

    fn locked(path: PathBuf, partial: PathBuf) -> Result<Self, TrainError> {
        let lock = Some(lock(&partial)?);
        Ok(Self {
            path,
            partial,
            lock,
            is_unchanged: Cell::new(false),
        })
    }

    /// `PARENT/NAME-1`, or the first number that is free.
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

    /// The folder's final path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file during the run.
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
        self.is_unchanged.set(false);
        let file = self.file(name);
        // Renaming keeps the file either unchanged or complete, whenever the program is killed.
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
    /// If it cannot be serialized or written.
    pub fn write_toml(&self, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
        let text = toml::to_string_pretty(value)
            .map_err(|error| TrainError::format(&self.file(name), error))?;
        self.write(name, text.as_bytes())
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    ///
    /// If it cannot be serialized or written.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| TrainError::format(&self.file(name), error))?;
        self.write(name, (text + "\n").as_bytes())
    }

    /// Appends a line of JSON.
    ///
    /// # Errors
    ///
    /// If it cannot be serialized or written.
    pub fn append_json_line(&self, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
        let line = serde_json::to_string(value)
            .map_err(|error| TrainError::format(&self.file(name), error))?;
        self.is_unchanged.set(false);
        let file = self.file(name);
        let opened = fs::OpenOptions::new().create(true).append(true).open(&file);
        opened
            .and_then(|mut opened| writeln!(opened, "{line}"))
            .map_err(TrainError::file(&file))
    }

    /// Renames the folder to its final path, and returns it.
    ///
    /// # Errors
    ///
    /// If the path has become in use.
    pub fn finish(mut self) -> Result<PathBuf, TrainError> {
        // Some systems cannot rename a folder with an open file. Without a lock, `drop` keeps the files.
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

    /// Keeps only the first `lines` lines of a file, if it exists.
    pub(crate) fn keep_lines(&self, name: &str, lines: usize) -> Result<(), TrainError> {
        let file = self.file(name);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            text => text.map_err(TrainError::file(&file))?,
        };
        let kept: String = text.split_inclusive('\n').take(lines).collect();
        if kept == text {
            return Ok(());
        }
        self.write(name, kept.as_bytes())
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
        if self.is_unchanged.get() {
            self.lock = None;
            let _ = fs::remove_file(self.file(LOCK));
            let _ = fs::rename(&self.partial, &self.path);
        } else if !is_worth_keeping() {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// A run's path without a slash at the end, and its partial folder.
fn paths(path: &Path) -> Result<(PathBuf, PathBuf), TrainError> {
    let path: PathBuf = path.components().collect();
    match partial_of(&path) {
        Some(partial) => Ok((path, partial)),
        None => Err(TrainError::FolderInUse(path)),
    }
}

/// `NAME` for an existing folder `NAME.partial`.
fn final_path(path: &Path) -> PathBuf {
    let is_partial = path.extension().is_some_and(|ending| ending == "partial");
    if is_partial && path.is_dir() {
        return path.with_extension("");
    }
    path.to_owned()
}

/// Locks a folder.
fn lock(folder: &Path) -> Result<File, TrainError> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(TrainError::file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TrainError::RunUnderWay(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(TrainError::file(&path)(error)),
    }
}

/// `NAME.partial` beside `NAME`; `None` if the path has no name.
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
    if in_use {
        return Err(TrainError::FolderInUse(path.to_owned()));
    }
    Ok(())
}
