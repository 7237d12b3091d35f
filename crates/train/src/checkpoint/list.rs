//! The checkpoints in a run's folder.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use stovepipe_pipeline::Layer;

use super::{
    contents::{Contents, Copied, model_file},
    state::TrainerState,
    sums,
};
use crate::{
    data::Fingerprint,
    disk::{Files, is_log, paths},
    error::TrainError,
    processes::Processes,
    settings::TrainSettings,
    task::{About, Task},
};

pub(crate) const FOLDER: &str = "checkpoints";
const STATE: &str = "standing.toml";
/// The endings of checkpoints that are incomplete or damaged.
const PARTIAL: &str = "partial";
const DAMAGED: &str = "damaged";

/// The checkpoints in a run's folder.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    files: Files,
}

/// A checkpoint of a run. Checkpoints are ordered by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    place: (u64, u64),
    name: String,
    path: PathBuf,
}

/// A checkpoint that is damaged.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// Where it is now.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

#[derive(Clone, Copy)]
pub(crate) struct Keep<'a> {
    /// This many of the newest.
    pub(crate) last: usize,
    /// This many of the best.
    pub(crate) best: usize,
    /// The metric that says which are best; without it, the loss.
    pub(crate) by: Option<&'a About>,
}

impl Checkpoint {
    /// The checkpoint in a folder, by the folder's name.
    ///
    /// ```
    /// use stovepipe_train::checkpoint::Checkpoint;
    ///
    /// let folder = "runs/train-1/checkpoints/epoch-0003-batch-0000120";
    /// assert!(Checkpoint::at(folder.as_ref()).is_some());
    /// assert!(Checkpoint::at("runs/train-1".as_ref()).is_none());
    /// ```
    #[must_use]
    pub fn at(folder: &Path) -> Option<Self> {
        let name = folder.file_name()?.to_str()?;
        Some(Self {
            place: TrainerState::place(name)?,
            name: name.to_owned(),
            path: folder.to_owned(),
        })
    }

    /// Checks that its files are complete and unchanged.
    ///
    /// # Errors
    ///
    /// If they are not.
    pub fn check(&self) -> Result<(), TrainError> {
        let path = self.path.clone();
        sums::check(&self.path).map_err(|reason| TrainError::DamagedCheckpoint { path, reason })
    }

    /// Its name: `epoch-0003-batch-0000120` was made after three epochs and 120 mini-batches.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file of its model, with averaged weights if `averaged`.
    #[must_use]
    pub fn model(&self, averaged: bool) -> PathBuf {
        self.path.join(model_file(averaged))
    }

    /// What the data were when it was made, see [`Source::fingerprint`](crate::Source::fingerprint).
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn data(&self) -> Result<Fingerprint, TrainError> {
        Ok(self.state()?.data)
    }

    /// Checks that the data are the same as when it was made.
    ///
    /// # Errors
    ///
    /// If they are not, or it cannot be read.
    pub fn check_data(&self, now: &Fingerprint) -> Result<(), TrainError> {
        self.state()?.check_data(now)
    }

    /// The limit of a training with these settings that it has reached, if any: the setting's name
    /// and value.
    ///
    /// # Errors
    ///
    /// If a setting that must stay the same has changed, or its state cannot be read.
    pub fn limit(
        &self,
        settings: &TrainSettings,
    ) -> Result<Option<(&'static str, usize)>, TrainError> {
        let state = self.state()?;
        state.check(settings)?;
        Ok(state.limit(state.steps, settings))
    }

    /// The mini-batches that were trained before it was made.
    ///
    /// # Errors
    ///
    /// If its state cannot be read.
    pub fn steps(&self) -> Result<u64, TrainError> {
        Ok(self.state()?.steps)
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn state(&self) -> Result<TrainerState, TrainError> {
        let path = self.path.join(STATE);
        let text = fs::read_to_string(&path).map_err(TrainError::file(&path))?;
        TrainerState::parse(&text, path)
    }
}

impl Checkpoints {
    /// The checkpoints of the run in the folder `run`.
    ///
    /// ```
    /// use stovepipe_train::checkpoint::Checkpoints;
    ///
    /// let run = tempfile::tempdir().unwrap();
    /// assert!(Checkpoints::of(run.path()).list()?.is_empty());
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    #[must_use]
    pub fn of(run: &Path) -> Self {
        Self::on(run, Files::default())
    }

    pub(crate) fn on(run: &Path, files: Files) -> Self {
        Self {
            folder: run.join(FOLDER),
            files,
        }
    }

    /// That of a checkpoint of this state.
    pub(crate) fn folder_of(&self, state: &TrainerState) -> PathBuf {
        self.folder.join(state.name())
    }

    /// All complete checkpoints, the oldest first.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Checkpoint>, TrainError> {
        let paths = match paths(&self.folder) {
            Err(TrainError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(Vec::new());
            }
            paths => paths?,
        };
        // Incomplete and damaged ones have an ending.
        let found = paths.iter().filter_map(|path| Checkpoint::at(path));
        let mut found: Vec<_> = found.collect();
        found.sort();
        Ok(found)
    }

    /// Whether some were found to be damaged.
    pub(crate) fn are_damaged(&self) -> bool {
        let paths = paths(&self.folder).unwrap_or_default();
        paths.iter().any(|path| has_ending(path, DAMAGED))
    }

    /// Whether this is a checkpoint, or the beginning of one.
    pub(crate) fn has_made(path: &Path) -> bool {
        let name = match has_ending(path, PARTIAL) {
            true => path.with_extension(""),
            false => path.to_owned(),
        };
        Checkpoint::at(&name).is_some()
    }

    /// The checkpoint with the best test results, by the task's
    /// [primary](crate::Metric::primary) metric.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn best<O>(&self, task: &Task<O>) -> Result<Option<Checkpoint>, TrainError> {
        Ok(by_test(self.list()?, task.primary()).into_iter().next())
    }

    /// The newest checkpoint that is not damaged. Renames damaged ones, and returns them too.
    pub(crate) fn newest(&self) -> Result<(Option<Checkpoint>, Vec<Damaged>), TrainError> {
        let mut damaged = Vec::new();
        for checkpoint in self.list()?.into_iter().rev() {
            match sums::check(&checkpoint.path) {
                Ok(()) => return Ok((Some(checkpoint), damaged)),
                Err(reason) => {
                    let path = checkpoint.path.with_extension(DAMAGED);
                    self.files.remove_folder(&path)?;
                    self.files.rename(&checkpoint.path, &path)?;
                    damaged.push(Damaged { path, reason });
                }
            }
        }
        Ok((None, damaged))
    }

    /// Makes a checkpoint, and removes those that are not to be kept.
    pub(crate) fn save<L: Layer>(
        &self,
        contents: &Contents<'_, L>,
        state: &TrainerState,
        keep: Keep<'_>,
    ) -> Result<(), TrainError> {
        let processes = contents.processes();
        let write = |folder: &Path| contents.save(folder, &self.files);
        self.make(state, keep, &processes, write)
    }

    /// The same of a copy, in the first process alone.
    pub(crate) fn save_copy(
        &self,
        copied: &Copied,
        state: &TrainerState,
        keep: Keep<'_>,
    ) -> Result<(), TrainError> {
        let write = |folder: &Path| copied.save(folder, &self.files);
        self.make(state, keep, &Processes::default(), write)
    }

    /// Whether there is a checkpoint of this state.
    pub(crate) fn has(&self, state: &TrainerState) -> bool {
        self.folder_of(state).exists()
    }

    /// Makes a checkpoint, in which `write` writes the tensors.
    fn make(
        &self,
        state: &TrainerState,
        keep: Keep<'_>,
        processes: &Processes,
        write: impl FnOnce(&Path) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let (path, files) = (self.folder_of(state), &self.files);
        let partial = path.with_extension(PARTIAL);
        let is_new = !processes.of_first(self.has(state))?;
        if is_new {
            processes.first(|| {
                files.create_folder(&self.folder)?;
                files.remove_folder(&partial)?;
                files.create_folder(&partial)
            })?;
            let sealed = || {
                seal(&partial, state, files)?;
                // Its steps are in the run's logs, which are as safe as it is.
                files.sync_files(self.folder.parent().unwrap_or(Path::new("")), is_log)
            };
            let written = write(&partial).and_then(|()| processes.first(sealed));
            if written.is_err() && processes.is_first() {
                // Do not waste space on an incomplete one.
                let _ = files.remove_folder(&partial);
            }
            written?;
        }
        let placed = processes.first(|| {
            if is_new {
                files.rename(&partial, &path)?;
            }
            self.sync()?;
            self.prune(keep)
        });
        placed.map(drop)
    }

    /// Sees that the names of all checkpoints are on the disk.
    fn sync(&self) -> Result<(), TrainError> {
        // The folders of the checkpoints, of the run, and of all runs may be new.
        let mut folders = self.folder.ancestors().take(3);
        folders.try_for_each(|folder| self.files.sync_folder(folder))
    }

    fn prune(&self, keep: Keep<'_>) -> Result<(), TrainError> {
        let remove = || {
            let old = self.older_than(keep.last, keep)?;
            old.iter()
                .try_for_each(|own| self.files.remove_folder(&own.path))
        };
        remove().map_err(|error| TrainError::NotRemoved(Box::new(error)))
    }

    /// Removes the oldest that is neither the newest nor among the best, and returns its name.
    pub(crate) fn remove_oldest(&self, keep: Keep<'_>) -> Result<Option<String>, TrainError> {
        let Some(oldest) = self.older_than(1, keep)?.into_iter().next() else {
            return Ok(None);
        };
        // The newest one may have its name since a moment ago.
        self.sync()?;
        self.files.remove_folder(&oldest.path)?;
        Ok(Some(oldest.name))
    }

    /// Those before the `last` that are not among the best, the oldest first.
    fn older_than(&self, last: usize, keep: Keep<'_>) -> Result<Vec<Checkpoint>, TrainError> {
        let mut all = self.list()?;
        let best = by_test(all.clone(), keep.by).into_iter();
        let best: Vec<_> = best.take(keep.best).collect();
        all.truncate(all.len().saturating_sub(last.max(1)));
        all.retain(|checkpoint| !best.contains(checkpoint));
        Ok(all)
    }

    /// Copies all checkpoints of `other`, the newest first.
    pub(crate) fn copy(&self, other: &Self) -> Result<(), TrainError> {
        self.files.create_folder(&self.folder)?;
        for checkpoint in other.list()?.into_iter().rev() {
            let path = self.folder.join(&checkpoint.name);
            let partial = path.with_extension(PARTIAL);
            self.files.remove_folder(&partial)?;
            self.files.create_folder(&partial)?;
            for file in paths(&checkpoint.path)? {
                self.files
                    .link(&file, &partial.join(file.file_name().unwrap_or_default()))?;
            }
            self.files.sync_folder(&partial)?;
            self.files.rename(&partial, &path)?;
        }
        self.sync()
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|own| own == ending)
}

fn seal(folder: &Path, state: &TrainerState, files: &Files) -> Result<(), TrainError> {
    let path = folder.join(STATE);
    let text = toml::to_string(state).map_err(|error| TrainError::format(&path, error))?;
    files.write(&path, || {
        fs::write(&path, text).map_err(TrainError::file(&path))
    })?;
    sums::seal(folder, files)
}

/// The tested checkpoints, the best first; of equal ones, the oldest first.
fn by_test(checkpoints: Vec<Checkpoint>, primary: Option<&About>) -> Vec<Checkpoint> {
    let mut tested: Vec<_> = (checkpoints.into_iter())
        .filter_map(|own| Some((own.state().ok()?.test?.quality(primary)?, own)))
        .collect();
    tested.sort_by(|(a, _), (b, _)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    tested.into_iter().map(|(_, own)| own).collect()
}
