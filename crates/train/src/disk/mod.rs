//! What a run writes into its folder, and its checkpoints: a test records it, loses what was not synced, and lets each
//! call fail.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod trial;

use std::{
    fmt::Debug,
    fs::{self, DirEntry, File},
    io::{self, BufWriter, ErrorKind, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::error::TrainError;

pub(crate) trait Disk: Debug + Send + Sync {
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// `write` writes the file, as a new one.
    fn write(&self, path: &Path, write: Write<'_>) -> Result<(), TrainError>;

    /// Appends to a file, which is created if there is none. A part that was written is taken away.
    fn append(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Gives a file a second name.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// With all that is in it.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// What is in a file.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

pub(crate) type Write<'a> = Box<dyn FnOnce() -> Result<(), TrainError> + 'a>;

/// That of the system.
#[derive(Debug)]
pub(crate) struct FileSystem;

impl Disk for FileSystem {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn write(&self, _: &Path, write: Write<'_>) -> Result<(), TrainError> {
        write()
    }

    fn append(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(content);
        written.inspect_err(|_| {
            let _ = file.set_len(before);
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        // Windows syncs what may be written alone.
        let mut options = File::options();
        options
            .read(true)
            .write(cfg!(windows))
            .open(path)?
            .sync_all()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        // Only Unix opens folders like files.
        if !cfg!(unix) {
            return Ok(());
        }
        File::open(or_here(path))?.sync_all()
    }
}

/// A disk whose calls are made again if a signal interrupts them, and whose errors name the file.
#[derive(Clone, Debug)]
pub(crate) struct Files(Arc<dyn Disk>);

impl Default for Files {
    fn default() -> Self {
        Self::on(FileSystem)
    }
}

impl Files {
    pub(crate) fn on(disk: impl Disk + 'static) -> Self {
        Self(Arc::new(disk))
    }

    /// Creates a folder, if there is none. Its parent must exist, so that a run's folder that somebody removed is
    /// not created again.
    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), TrainError> {
        match again(|| self.0.create_folder(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result.map_err(TrainError::file(path)),
        }
    }

    pub(crate) fn write(
        &self,
        path: &Path,
        write: impl FnOnce() -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        self.0.write(path, Box::new(write))
    }

    /// Replaces a file by one that `write` writes beside it. Renaming keeps the file either unchanged or complete,
    /// whenever the program is killed.
    pub(crate) fn replace(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> Result<(), TrainError> {
        let beside = path.with_added_extension("new");
        let whole = || {
            let mut file = BufWriter::new(File::create(&beside)?);
            write(&mut file)?;
            file.flush()
        };
        let replaced = (self.write(&beside, || whole().map_err(TrainError::file(path))))
            .and_then(|()| again(|| self.0.sync_file(&beside)).map_err(TrainError::file(path)))
            .and_then(|()| self.rename(&beside, path));
        if replaced.is_err() {
            let _ = self.remove_file(&beside);
        }
        replaced
    }

    pub(crate) fn append(&self, path: &Path, content: &[u8]) -> Result<(), TrainError> {
        again(|| self.0.append(path, content)).map_err(TrainError::file(path))
    }

    /// Links a file in place of another, or copies it where the file system has no links.
    pub(crate) fn link(&self, from: &Path, to: &Path) -> Result<(), TrainError> {
        // A copy onto a link to the same file would empty both.
        self.remove_file(to)?;
        let copy = || {
            let copy = || fs::copy(from, to).map(drop).map_err(TrainError::file(to));
            self.write(to, copy)?;
            self.sync_file(to)
        };
        again(|| self.0.link(from, to)).or_else(|_| copy())
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), TrainError> {
        again(|| self.0.rename(from, to)).map_err(TrainError::file(to))
    }

    /// Removes a file, if there is one.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), TrainError> {
        removed(again(|| self.0.remove_file(path))).map_err(TrainError::file(path))
    }

    /// Removes a folder, if there is one.
    pub(crate) fn remove_folder(&self, path: &Path) -> Result<(), TrainError> {
        removed(again(|| self.0.remove_folder(path))).map_err(TrainError::file(path))
    }

    pub(crate) fn sync_file(&self, path: &Path) -> Result<(), TrainError> {
        again(|| self.0.sync_file(path)).map_err(TrainError::file(path))
    }

    pub(crate) fn sync_folder(&self, path: &Path) -> Result<(), TrainError> {
        match again(|| self.0.sync_folder(path)) {
            // Some network disks cannot.
            Err(error)
                if [ErrorKind::InvalidInput, ErrorKind::Unsupported].contains(&error.kind()) =>
            {
                Ok(())
            }
            result => result.map_err(TrainError::file(path)),
        }
    }

    /// Syncs files in a folder, and their names. Some may be replaced or removed meanwhile, and others may be
    /// somebody else's.
    pub(crate) fn sync_files(
        &self,
        folder: &Path,
        is_own: impl Fn(&Path) -> bool,
    ) -> Result<(), TrainError> {
        use ErrorKind::{InvalidInput, NotFound, PermissionDenied, Unsupported};
        const OF_OTHERS: [ErrorKind; 4] = [InvalidInput, NotFound, PermissionDenied, Unsupported];
        for path in paths(folder)? {
            if path.is_file() && is_own(&path) {
                match self.sync_file(&path) {
                    Err(TrainError::File { source, .. }) if OF_OTHERS.contains(&source.kind()) => {}
                    synced => synced?,
                }
            }
        }
        self.sync_folder(folder)
    }

    /// Syncs all files in a folder and in those that it has, but for folders of one name.
    pub(crate) fn sync_all(&self, folder: &Path, but: &str) -> Result<(), TrainError> {
        for own in paths(folder)? {
            if own.is_dir() && !own.is_symlink() && !own.ends_with(but) {
                self.sync_all(&own, but)?;
            }
        }
        self.sync_files(folder, |_| true)
    }
}

/// The paths of a folder's entries, sorted.
pub(crate) fn paths(folder: &Path) -> Result<Vec<PathBuf>, TrainError> {
    let path = |entry: io::Result<DirEntry>| Ok(entry?.path());
    let entries = fs::read_dir(or_here(folder)).and_then(|all| all.map(path).collect());
    let mut paths: Vec<_> = entries.map_err(TrainError::file(folder))?;
    paths.sort();
    Ok(paths)
}

/// Whether lines are appended to a file.
pub(crate) fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "jsonl")
}

/// What is not there needs not be removed.
fn removed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The parent of a path of one name is an empty path, which the system does not know.
fn or_here(folder: &Path) -> &Path {
    let is_here = folder.as_os_str().is_empty();
    if is_here { Path::new(".") } else { folder }
}

fn again(call: impl Fn() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
