//! The folder of a run's files.
//!
//! During a run, its files are in `NAME.partial`. At the end, the folder is renamed to `NAME`: a
//! folder under its own name is complete. A complete run that trains further stays as it is until
//! then. If a run fails, its partial folder is removed, unless it has new checkpoints, or damaged
//! ones. The folder of a killed program stays, so that the run can resume. A lock keeps two programs
//! from writing to one folder; the system releases it if the program is killed.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufRead, BufReader, ErrorKind, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;
use stovepipe_pipeline::error::ProcessError;

use crate::{
    checkpoint::{self, Checkpoint, Checkpoints},
    disk::{Files, is_log, paths as paths_in},
    error::TrainError,
    processes::Processes,
};

/// The file with a line for each epoch.
pub(super) const METRICS: &str = "metrics.jsonl";
/// The file with a line for each mini-batch.
pub(super) const STEPS: &str = "steps.jsonl";
/// The file with sums of bits for each mini-batch.
pub(super) const CHECKSUMS: &str = "checksums.jsonl";
const LOCK: &str = "lock";
/// Where the complete folder of a run goes that has trained further. While it trains, this is empty.
const BEFORE: &str = "before";

/// How often, and after which time, a lock is tried.
const TRIES: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(10);

/// The folder of a run. If it is dropped before [`finish`](Self::finish), it is removed, unless it has
/// new checkpoints, or damaged ones.
///
/// ```
/// # let parent = tempfile::tempdir().unwrap();
/// # let parent = parent.path();
/// use stovepipe_train::RunFolder;
///
/// let folder = RunFolder::create_next(parent, "train")?;
/// let path = folder.path().to_owned(); // train-1
/// folder.write("notes.txt", b"all went well")?;
/// assert!(RunFolder::create(&path).is_err() && RunFolder::resume(&path).is_err()); // in use
/// assert!(!path.exists());
/// assert_eq!(RunFolder::find(&path), Some(folder.file("")));
/// folder.finish()?;
/// assert!(path.join("notes.txt").exists());
/// assert_eq!(RunFolder::find(&path), Some(path));
/// let next = RunFolder::create_next(parent, "train")?;
/// assert_eq!(next.path(), parent.join("train-2"));
/// # Ok::<(), stovepipe_train::TrainError>(())
/// ```
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    partial: PathBuf,
    /// `None` when the run is over.
    lock: Option<File>,
    /// Whether the file system has locks.
    has_locks: bool,
    /// Folders that were made for it, the innermost first.
    made: Vec<PathBuf>,
    /// Whether it was an empty folder at `path`.
    was_empty: bool,
    /// Whether another process has the files: nothing is written here.
    is_elsewhere: bool,
    files: Files,
}

impl RunFolder {
    /// The folder of a run in several processes: the first one opens it, with [`create`](Self::create) or
    /// another function. The others get a folder that keeps nothing.
    ///
    /// ```
    /// use stovepipe_train::{Processes, RunFolder};
    ///
    /// # let parent = tempfile::tempdir().unwrap();
    /// # let path = parent.path().join("run");
    /// let processes = Processes::default(); // one
    /// let folder = RunFolder::open_in(&processes, || RunFolder::create(&path))?;
    /// folder.write("notes.txt", b"all went well")?;
    /// folder.finish()?;
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `open`, in all processes.
    pub fn open_in<E: From<TrainError> + From<ProcessError> + ToString>(
        processes: &Processes,
        open: impl FnOnce() -> Result<Self, E>,
    ) -> Result<Self, E> {
        let own = processes.first(open)?;
        let path = own.as_ref().map(|own| own.path.clone());
        let path = processes.of_first(path)?.unwrap_or_default();
        Ok(own.unwrap_or_else(|| Self {
            partial: path.with_added_extension("partial"),
            path,
            lock: None,
            has_locks: true,
            made: Vec::new(),
            was_empty: false,
            is_elsewhere: true,
            files: Files::default(),
        }))
    }

    /// Creates a folder for `path`.
    ///
    /// # Errors
    ///
    /// If `path` exists and is not an empty folder that can be renamed, another run is using it, or it
    /// cannot be written.
    pub fn create(path: &Path) -> Result<Self, TrainError> {
        Self::create_on(path, Files::default())
    }

    fn create_on(path: &Path, files: Files) -> Result<Self, TrainError> {
        let (path, partial) = paths(path)?;
        check_free(&path)?;
        if partial.exists() {
            return Err(match check_unlocked(&partial, File::try_lock_shared)? {
                true => TrainError::RunKilled(partial),
                false => TrainError::RunUnfinished(partial),
            });
        }
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = path.ancestors().skip(1).take_while(missing);
        let made: Vec<_> = made.map(Path::to_owned).collect();
        let was_empty = path.exists();
        // Only one program can create the folder. One that is there must be one that can be renamed
        // at the end: not where a disk is mounted.
        let begun = match was_empty {
            true => fs::rename(&path, &partial).map_err(|_| TrainError::FolderFixed(path.clone())),
            false => create_with_parents(&partial),
        };
        begun.inspect_err(|_| remove_empty(&made))?;
        let mut folder = Self::locked(path, partial, files)?;
        (folder.made, folder.was_empty) = (made, was_empty);
        for parent in folder.made.iter().filter_map(|made| made.parent()) {
            let _ = folder.files.sync_folder(parent); // as well as the disk can
        }
        // Another run may have ended since.
        check_free(&folder.path)?;
        Ok(folder)
    }

    /// Creates a folder for `PARENT/NAME-1`, or the first number that is free. Programs that start at
    /// the same time get different ones.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn create_next(parent: &Path, name: &str) -> Result<Self, TrainError> {
        use TrainError::{FolderInUse, LinkToNothing, RunKilled, RunUnderWay, RunUnfinished};
        let mut number = 1_u32;
        loop {
            match Self::create(&parent.join(format!("{name}-{number}"))) {
                Err(
                    FolderInUse(_) | LinkToNothing(_) | RunKilled(_) | RunUnderWay(_)
                    | RunUnfinished(_),
                ) => number += 1,
                created => return created,
            }
        }
    }

    /// Opens the folder of a run that was killed or stopped, or that is to train further. Creates it
    /// if there is none. A complete run stays at `path` until [`finish`](Self::finish) replaces it.
    ///
    /// # Errors
    ///
    /// If another run is using it, `path` holds other files, or it cannot be written.
    pub fn resume(path: &Path) -> Result<Self, TrainError> {
        Self::resume_on(path, Files::default())
    }

    pub(super) fn resume_on(path: &Path, files: Files) -> Result<Self, TrainError> {
        let (path, partial) = paths(&final_path(path))?;
        let is_further = newest(&partial)?.is_none() && newest(&path)?.is_some();
        match partial.exists() {
            true if is_further || partial.join(BEFORE).exists() => {}
            true => check_free(&path)?,
            false if is_further => {
                fs::create_dir(&partial).map_err(|error| match error.kind() {
                    ErrorKind::AlreadyExists => TrainError::RunUnderWay(partial.clone()),
                    _ => TrainError::file(&partial)(error),
                })?;
            }
            false => return Self::create_on(&path, files),
        }
        let folder = Self::locked(path, partial, files)?;
        if is_further {
            folder.copy_complete()?;
        }
        Ok(folder)
    }

    /// Copies the complete run. Most files are links, which take no space: they are replaced, but
    /// never changed. Checkpoints come last: without one, this starts again.
    fn copy_complete(&self) -> Result<(), TrainError> {
        self.files.create_folder(&self.file(BEFORE))?;
        let entries = fs::read_dir(&self.path).map_err(TrainError::file(&self.path))?;
        for entry in entries {
            let from = entry.map_err(TrainError::file(&self.path))?.path();
            let to = self.partial.join(from.file_name().unwrap_or_default());
            match from.is_file() {
                false => {}
                true if is_log(&from) => {
                    let copy = || fs::copy(&from, &to).map(drop);
                    (self.files).write(&to, || copy().map_err(TrainError::file(&from)))?;
                }
                true => self.files.link(&from, &to)?,
            }
        }
        self.files.sync_files(&self.partial, |_| true)?;
        self.checkpoints().copy(&Checkpoints::of(&self.path))
    }

    /// Where the files of the run `path` are: at `path` if it is complete, else in its partial folder.
    #[must_use]
    pub fn find(path: &Path) -> Option<PathBuf> {
        let (path, partial) = paths(path).ok()?;
        [path, partial].into_iter().find(|path| !is_empty(path))
    }

    /// Where the files are that [`resume`](Self::resume) begins with, if there are any.
    ///
    /// # Errors
    ///
    /// If another run is using them, or they cannot be read.
    pub fn find_to_resume(path: &Path) -> Result<Option<PathBuf>, TrainError> {
        let (path, partial) = paths(&final_path(path))?;
        check_unlocked(&partial, File::try_lock_shared)?;
        let is_complete = newest(&partial)?.is_none() && newest(&path)?.is_some();
        let folder = if is_complete { path } else { partial };
        Ok(Some(folder).filter(|folder| folder.is_dir()))
    }

    fn locked(path: PathBuf, partial: PathBuf, files: Files) -> Result<Self, TrainError> {
        let (lock, has_locks) = lock(&partial, File::try_lock)?;
        Ok(Self {
            path,
            partial,
            lock: Some(lock),
            has_locks,
            made: Vec::new(),
            was_empty: false,
            is_elsewhere: false,
            files,
        })
    }

    /// Whether another process has the files, so that what is written here is not kept.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Whether a lock keeps other programs from writing here: some network file systems have none.
    pub(super) fn has_locks(&self) -> bool {
        self.has_locks
    }

    /// Checks that nobody has removed or replaced the folder.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        match &self.lock {
            Some(lock) if !is_at(lock, &self.file(LOCK)) => {
                Err(TrainError::FolderGone(self.partial.clone()))
            }
            _ => Ok(()),
        }
    }

    /// The disk that it is on.
    pub(super) fn files(&self) -> &Files {
        &self.files
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
        if self.is_elsewhere {
            return Ok(());
        }
        self.check()?;
        (self.files).replace(&self.file(name), |new| new.write_all(content))
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

    /// Appends a line of JSON, or nothing.
    pub(crate) fn append_json_line(
        &self,
        name: &str,
        value: &impl Serialize,
    ) -> Result<(), TrainError> {
        if self.is_elsewhere {
            return Ok(());
        }
        self.check()?;
        let line = serde_json::to_string(value)
            .map_err(|error| TrainError::format(&self.file(name), error))?;
        self.files
            .append(&self.file(name), (line + "\n").as_bytes())
    }

    /// Renames the folder to its final path, and returns it. Replaces the complete run that it
    /// began with.
    ///
    /// # Errors
    ///
    /// If something has come to be at the path. The folder is then renamed to `PATH-2`, or the next
    /// number that is free, and the error says so. If a file cannot be synced; then the folder stays
    /// where it is, and can be resumed.
    pub fn finish(mut self) -> Result<PathBuf, TrainError> {
        if self.is_elsewhere {
            return Ok(self.path.clone());
        }
        self.check()?;
        let files = self.files.clone();
        // It is complete also if the machine stops just afterwards. Checkpoints are synced already.
        let synced = files.sync_all(&self.partial, checkpoint::FOLDER);
        // Nobody may lock a file that is about to move. Some systems cannot rename a folder with an open
        // file.
        let _ = files.remove_file(&self.file(LOCK));
        self.lock = None;
        synced?;
        let before = self.file(BEFORE);
        let is_further = before.exists();
        if is_further && self.path.exists() {
            // Some systems cannot rename to an empty folder.
            let moved = fs::remove_dir(&before).map_err(TrainError::file(&before));
            let moved = moved.and_then(|()| files.rename(&self.path, &before));
            moved.map_err(|error| self.not_in_place(error))?;
        }
        files.rename(&self.partial, &self.path).map_err(|error| {
            let _ = files.rename(&before, &self.path);
            self.not_in_place(error)
        })?;
        self.sync_name();
        let before = self.path.join(BEFORE);
        if is_further && self.take_over(&before).is_ok() {
            let _ = files.remove_folder(&before);
        }
        Ok(self.path.clone())
    }

    /// Moves what a user has put into the folder of the complete run that this one began with, such as an export of its
    /// model. Its files were copied at the beginning.
    fn take_over(&self, before: &Path) -> Result<(), TrainError> {
        let mut left = paths_in(before)?;
        left.retain(|path| !path.is_file());
        let checkpoints = paths_in(&before.join(checkpoint::FOLDER))?.into_iter();
        left.extend(checkpoints.filter(|path| !Checkpoints::has_made(path)));
        for from in left {
            let to = from.strip_prefix(before).map(|name| self.path.join(name));
            match to {
                Ok(to) if fs::symlink_metadata(&to).is_err() => self.files.rename(&from, &to)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Leaves the folder as it is, also without checkpoints, for a program that resumes it. Returns its final path.
    pub fn leave(mut self) -> PathBuf {
        self.lock = None;
        self.path.clone()
    }

    /// Removes the folder and all its files, for a run that was only tried.
    ///
    /// # Errors
    ///
    /// If they cannot be removed.
    pub fn discard(mut self) -> Result<(), TrainError> {
        if self.is_elsewhere {
            return Ok(());
        }
        self.check()?;
        self.lock = None;
        (self.remove()).map_err(TrainError::file(&self.partial))
    }

    /// Leaves all as it was before.
    fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.partial)?;
        if self.was_empty {
            fs::create_dir(&self.path)?;
        }
        remove_empty(&self.made);
        Ok(())
    }

    /// Sees that the name of a complete run is on the disk, as well as the disk can.
    fn sync_name(&self) {
        let parent = self.path.parent().unwrap_or(Path::new(""));
        let _ = self.files.sync_folder(parent);
    }

    /// Looks for another place for a complete run.
    fn not_in_place(&self, error: TrainError) -> TrainError {
        let TrainError::File { source, .. } = error else {
            return error;
        };
        let numbered = |number: u32| {
            let mut path = self.path.clone().into_os_string();
            path.push(format!("-{number}"));
            PathBuf::from(path)
        };
        let is_taken = fs::symlink_metadata(&self.path).is_ok();
        let mut free = (2..).map(numbered).filter(|path| !path.exists());
        let other = free.next().filter(|_| is_taken);
        let moved = other.filter(|other| self.files.rename(&self.partial, other).is_ok());
        self.sync_name();
        TrainError::NotInPlace {
            path: self.path.clone(),
            place: moved.unwrap_or_else(|| self.partial.clone()),
            source,
        }
    }

    /// The run's checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::on(&self.partial, self.files.clone())
    }

    /// Keeps those lines of a file of JSON that are to be kept, if it exists. Returns how many others
    /// were no JSON, such as a last line that was not completely written.
    pub(crate) fn keep_json_lines(
        &self,
        name: &str,
        is_kept: impl Fn(&Value) -> bool,
    ) -> Result<usize, TrainError> {
        let file = self.file(name);
        if self.is_elsewhere {
            return Ok(0);
        }
        // A long training has many lines: one at a time. Only a file that changes is written.
        match kept_lines(&file, &is_kept, &mut io::sink()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(TrainError::file(&file)(error)),
            Ok((damaged, true)) => Ok(damaged),
            Ok((damaged, false)) => {
                (self.files).replace(&file, |new| kept_lines(&file, &is_kept, new).map(drop))?;
                Ok(damaged)
            }
        }
    }
}

/// Writes those lines of a file of JSON that are to be kept. Returns how many were no JSON, and whether all of the
/// file was kept.
fn kept_lines(
    file: &Path,
    is_kept: impl Fn(&Value) -> bool,
    kept: &mut (impl Write + ?Sized),
) -> io::Result<(usize, bool)> {
    let mut lines = BufReader::new(File::open(file)?);
    let (mut line, mut damaged, mut is_same) = (Vec::new(), 0, true);
    while lines.read_until(b'\n', &mut line)? > 0 {
        let value = serde_json::from_slice(&line);
        damaged += usize::from(value.is_err());
        if value.is_ok_and(|value| is_kept(&value)) {
            let content = line.trim_ascii_end();
            is_same &= content.len() + 1 == line.len();
            kept.write_all(content)?;
            kept.write_all(b"\n")?;
        } else {
            is_same = false;
        }
        line.clear();
    }
    Ok((damaged, is_same))
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // In its place there may be the folder of another run.
        let is_own = self.check().is_ok();
        if self.lock.take().is_none() || !is_own {
            return;
        }
        let complete = Some(&self.path).filter(|_| self.file(BEFORE).exists());
        let before = complete.map_or(Ok(None), |path| newest(path));
        let has_new = match (newest(&self.partial), before) {
            // The complete run has those that are damaged, too.
            (Ok(None), Ok(None)) if complete.is_none() => self.checkpoints().are_damaged(),
            (Ok(now), Ok(before)) => now > before,
            // What cannot be read is not removed.
            _ => true,
        };
        if !has_new {
            let _ = self.remove();
        }
    }
}

/// The name of a run's newest checkpoint. Names are ordered by time.
fn newest(run: &Path) -> Result<Option<String>, TrainError> {
    let newest = Checkpoints::of(run).list()?.pop();
    Ok(newest.as_ref().map(Checkpoint::name).map(str::to_owned))
}

/// Creates a folder that only one program can create.
fn create_with_parents(folder: &Path) -> Result<(), TrainError> {
    let parent = folder.parent().unwrap_or(Path::new(""));
    let mut tries = 0;
    loop {
        fs::create_dir_all(parent).map_err(TrainError::file(parent))?;
        match fs::create_dir(folder).map_err(|error| (error.kind(), error)) {
            Ok(()) => return Ok(()),
            Err((ErrorKind::AlreadyExists, _)) => {
                return Err(TrainError::RunUnderWay(folder.to_owned()));
            }
            // A run that failed has removed the empty parent since.
            Err((ErrorKind::NotFound, _)) if tries < TRIES => tries += 1,
            Err((_, error)) => return Err(TrainError::file(folder)(error)),
        }
    }
}

/// Removes folders, the innermost first, if there is nothing in them.
fn remove_empty(folders: &[PathBuf]) {
    for folder in folders {
        let _ = fs::remove_dir(folder);
    }
}

/// Whether there is no such folder, or nothing in it.
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

/// A run's path without a slash at the end and without links, and its partial folder.
fn paths(path: &Path) -> Result<(PathBuf, PathBuf), TrainError> {
    let mut path: PathBuf = path.components().collect();
    if path.is_symlink() {
        path = (path.canonicalize()).map_err(|_| TrainError::LinkToNothing(path))?;
    }
    match path.file_name() {
        Some(_) => Ok((path.clone(), path.with_added_extension("partial"))),
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

/// Locks a folder, and says whether the file system can.
fn lock(
    folder: &Path,
    try_lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<(File, bool), TrainError> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(|error| match error.kind() {
        // The run has ended since.
        ErrorKind::NotFound => TrainError::RunUnderWay(folder.to_owned()),
        _ => TrainError::file(&path)(error),
    })?;
    for _ in 0..TRIES {
        match try_lock(&file) {
            Ok(()) if is_at(&file, &path) => return Ok((file, true)),
            // The run that had it has ended, and its folder has moved.
            Ok(()) => break,
            // A program that looks whether it is locked has it for a moment.
            Err(TryLockError::WouldBlock) => thread::sleep(INTERVAL),
            Err(TryLockError::Error(error)) if is_without_locks(&error) => {
                return Ok((file, false));
            }
            Err(TryLockError::Error(error)) => return Err(TrainError::file(&path)(error)),
        }
    }
    Err(TrainError::RunUnderWay(folder.to_owned()))
}

/// Whether a lock failed since the file system has none, as NFS without its lock service.
fn is_without_locks(error: &io::Error) -> bool {
    const ENOLCK: i32 = if cfg!(target_os = "linux") { 37 } else { 77 };
    let is_enolck = cfg!(unix) && error.raw_os_error() == Some(ENOLCK);
    is_enolck || error.kind() == ErrorKind::Unsupported
}

/// Whether an open file is still at its path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let there = fs::metadata(path).ok().map(id);
    there.is_some() && there == file.metadata().ok().map(id)
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Checks that no other program is writing to a folder, and says whether the file system can tell.
fn check_unlocked(
    folder: &Path,
    try_lock: impl FnOnce(&File) -> Result<(), TryLockError>,
) -> Result<bool, TrainError> {
    let lock = File::open(folder.join(LOCK));
    match lock.map(|lock| try_lock(&lock)) {
        Ok(Err(TryLockError::WouldBlock)) => Err(TrainError::RunUnderWay(folder.to_owned())),
        Ok(Err(TryLockError::Error(error))) => Ok(!is_without_locks(&error)),
        _ => Ok(true),
    }
}

fn check_free(path: &Path) -> Result<(), TrainError> {
    if path.exists() && (!path.is_dir() || !is_empty(path)) {
        return Err(TrainError::FolderInUse(path.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_may_have_no_locks() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |error: io::Error| {
            let error = std::cell::Cell::new(Some(error));
            lock(folder.path(), |_| {
                Err(TryLockError::Error(error.take().unwrap()))
            })
        };
        assert!(!refused(ErrorKind::Unsupported.into()).unwrap().1);
        #[cfg(target_os = "linux")]
        assert!(!refused(io::Error::from_raw_os_error(37)).unwrap().1); // "No locks available"
        let error = refused(ErrorKind::PermissionDenied.into()).unwrap_err();
        assert!(error.to_string().contains("lock"), "{error}");
        assert!(lock(folder.path(), File::try_lock).unwrap().1);
        let refused = |_: &File| Err(TryLockError::Error(ErrorKind::Unsupported.into()));
        assert!(!check_unlocked(folder.path(), refused).unwrap());
        assert!(check_unlocked(folder.path(), File::try_lock_shared).unwrap());
    }
}
