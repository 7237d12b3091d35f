//! The checkpoints in a run's folder.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use stovepipe_pipeline::Layer;

use super::{
    contents::{Contents, model_file},
    state::TrainerState,
    sums,
};
use crate::{
    error::TrainError,
    task::{About, Metrics, Task},
};

/// The folder of checkpoints in a run's folder.
const FOLDER: &str = "checkpoints";
const STATE: &str = "standing.toml";

/// The checkpoints in a run's folder.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
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

/// Which checkpoints to keep.
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
        sums::check(&self.path).map_err(|reason| TrainError::DamagedCheckpoint {
            path: self.path.clone(),
            reason,
        })
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

    pub(crate) fn state(&self) -> Result<TrainerState, TrainError> {
        let path = self.path.join(STATE);
        let text = fs::read_to_string(&path).map_err(TrainError::file(&path))?;
        TrainerState::parse(&text, path)
    }

    /// Its test results, if it was made at the end of an epoch.
    fn tested(&self) -> Option<Metrics> {
        self.state().ok()?.test
    }

    /// Loads its tensors, and returns the state of the training.
    pub(crate) fn load<L: Layer>(&self, into: Contents<'_, L>) -> Result<TrainerState, TrainError> {
        let state = self.state()?;
        into.load(&self.path, &state)?;
        Ok(state)
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
        Self {
            folder: run.join(FOLDER),
        }
    }

    /// All complete checkpoints, the oldest first.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Checkpoint>, TrainError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(TrainError::file(&self.folder))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(TrainError::file(&self.folder))?.path();
            // Incomplete and damaged ones have a suffix, `.partial` or `.damaged`.
            found.extend(Checkpoint::at(&path));
        }
        found.sort();
        Ok(found)
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
    ///
    /// # Errors
    ///
    /// If the folder cannot be read or written.
    pub(crate) fn newest(&self) -> Result<(Option<Checkpoint>, Vec<Damaged>), TrainError> {
        let mut damaged = Vec::new();
        for checkpoint in self.list()?.into_iter().rev() {
            match sums::check(&checkpoint.path) {
                Ok(()) => return Ok((Some(checkpoint), damaged)),
                Err(reason) => {
                    let path = checkpoint.path.with_extension("damaged");
                    remove(&path)?;
                    let renamed = fs::rename(&checkpoint.path, &path);
                    renamed.map_err(TrainError::file(&path))?;
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
        let path = self.folder.join(state.name());
        if path.exists() {
            return Ok(());
        }
        let partial = path.with_extension("partial");
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(TrainError::file(&partial))?;
        let written = write(&partial, contents, state);
        if written.is_err() {
            // Do not waste space on an incomplete one.
            let _ = fs::remove_dir_all(&partial);
        }
        written?;
        fs::rename(&partial, &path).map_err(TrainError::file(&path))?;
        // The folders of the checkpoints, of the run, and of all runs may be new.
        for folder in self.folder.ancestors().take(3) {
            sums::sync_folder(folder)?;
        }
        self.prune(keep)
    }

    fn prune(&self, keep: Keep<'_>) -> Result<(), TrainError> {
        let all = self.list()?;
        let best = by_test(all.clone(), keep.by).into_iter();
        let kept: Vec<_> = best.take(keep.best).collect();
        let old = all.len().saturating_sub(keep.last.max(1));
        for checkpoint in all.into_iter().take(old) {
            if !kept.contains(&checkpoint) {
                remove(&checkpoint.path)?;
            }
        }
        Ok(())
    }
}

fn write<L: Layer>(
    folder: &Path,
    contents: &Contents<'_, L>,
    state: &TrainerState,
) -> Result<(), TrainError> {
    contents.save(folder)?;
    let path = folder.join(STATE);
    let text = toml::to_string(state).map_err(|error| TrainError::format(&path, error))?;
    fs::write(&path, text).map_err(TrainError::file(&path))?;
    sums::seal(folder)
}

/// The tested checkpoints, the best first; of equal ones, the oldest first.
fn by_test(checkpoints: Vec<Checkpoint>, primary: Option<&About>) -> Vec<Checkpoint> {
    let tested = (checkpoints.into_iter())
        .filter_map(|checkpoint| Some((checkpoint.tested()?.quality(primary)?, checkpoint)));
    let mut tested: Vec<_> = tested.collect();
    tested.sort_by(|((a, a_next), _), ((b, b_next), _)| {
        b.total_cmp(a).then(b_next.total_cmp(a_next))
    });
    tested
        .into_iter()
        .map(|(_, checkpoint)| checkpoint)
        .collect()
}

/// Removes a folder if it is there.
fn remove(path: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result.map_err(TrainError::file(path)),
    }
}
