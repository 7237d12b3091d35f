//! What making a checkpoint changes on the disk, in one place: a test records it, loses what was not synced, and lets
//! each call fail.

use std::{
    fmt::Debug,
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
    sync::Arc,
};

use crate::error::TrainError;

pub(super) trait Disk: Debug + Send + Sync {
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// `write` writes the file.
    fn write(&self, path: &Path, write: Write<'_>) -> Result<(), TrainError>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// With all that is in it.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// What is in a file.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

pub(super) type Write<'a> = Box<dyn FnOnce() -> Result<(), TrainError> + 'a>;

/// That of the system.
#[derive(Debug)]
pub(super) struct FileSystem;

impl Disk for FileSystem {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn write(&self, _: &Path, write: Write<'_>) -> Result<(), TrainError> {
        write()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
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
        let is_here = path.as_os_str().is_empty();
        File::open(if is_here { Path::new(".") } else { path })?.sync_all()
    }
}

/// A disk whose calls are made again if a signal interrupts them, and whose errors name the file.
#[derive(Clone, Debug)]
pub(super) struct Files(Arc<dyn Disk>);

impl Default for Files {
    fn default() -> Self {
        Self::on(FileSystem)
    }
}

impl Files {
    pub(super) fn on(disk: impl Disk + 'static) -> Self {
        Self(Arc::new(disk))
    }

    /// Creates a folder, if there is none. Its parent must exist, so that a run's folder that somebody removed is
    /// not created again.
    pub(super) fn create_folder(&self, path: &Path) -> Result<(), TrainError> {
        match again(|| self.0.create_folder(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result.map_err(TrainError::file(path)),
        }
    }

    pub(super) fn write(
        &self,
        path: &Path,
        write: impl FnOnce() -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        self.0.write(path, Box::new(write))
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), TrainError> {
        again(|| self.0.rename(from, to)).map_err(TrainError::file(to))
    }

    /// Removes a folder, if there is one.
    pub(super) fn remove_folder(&self, path: &Path) -> Result<(), TrainError> {
        match again(|| self.0.remove_folder(path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.map_err(TrainError::file(path)),
        }
    }

    pub(super) fn sync_file(&self, path: &Path) -> Result<(), TrainError> {
        again(|| self.0.sync_file(path)).map_err(TrainError::file(path))
    }

    pub(super) fn sync_folder(&self, path: &Path) -> Result<(), TrainError> {
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
}

fn again(call: impl Fn() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
