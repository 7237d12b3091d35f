//! What a training goes on from after it was ended, by whatever.
//!
//! A checkpoint is a folder of files in open formats: the model and what an optimizer keeps of each parameter, named by
//! layer, as safetensors; where the training stands as TOML; and the sums of all of them. It is written beside, put on
//! the disk and given its name in one move. So a training can be killed at any moment, and a checkpoint under its own
//! name is whole, unless the disk has damaged it, which the sums show.

mod contents;
mod sums;
mod trainer_state;

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use stovepipe_pipeline::Layer;

pub(crate) use contents::Contents;
pub(crate) use trainer_state::{Sums, TrainerState};

use crate::{error::TrainError, scores::Metrics};

/// Where a run's checkpoints lie.
const FOLDER: &str = "checkpoints";
const STANDING: &str = "standing.toml";

/// The checkpoints in a run's folder.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

/// A checkpoint of a run. They are in the order of time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    place: (u64, u64),
    name: String,
    path: PathBuf,
}

/// A checkpoint that is damaged.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// Where it has been put.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Checkpoint {
    /// The one that a folder is, by its name.
    ///
    /// ```
    /// use stovepipe_train::Checkpoint;
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

    /// Makes sure that it is as it was made.
    ///
    /// # Errors
    ///
    /// If a file of it is gone or has changed.
    pub fn check(&self) -> Result<(), TrainError> {
        sums::check(&self.path).map_err(|reason| TrainError::DamagedCheckpoint {
            path: self.path.clone(),
            reason,
        })
    }

    /// What it is called: `epoch-0003-batch-0000120` was made after three epochs and 120 mini-batches.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its model; that of the averaged weights, if one asks for these.
    #[must_use]
    pub fn model(&self, averaged: bool) -> PathBuf {
        self.path.join(contents::model_file(averaged))
    }

    pub(crate) fn state(&self) -> Result<TrainerState, TrainError> {
        let path = self.path.join(STANDING);
        let text = fs::read_to_string(&path).map_err(TrainError::file(&path))?;
        TrainerState::parse(&text, path)
    }

    /// What the test set said of it, if it was made at the end of an epoch.
    fn tested(&self) -> Option<Metrics> {
        self.state().ok()?.test
    }

    /// Takes a training to where it stood. Returns where that is.
    pub(crate) fn load<L: Layer>(&self, into: Contents<'_, L>) -> Result<TrainerState, TrainError> {
        let state = self.state()?;
        into.load(&self.path, &state)?;
        Ok(state)
    }
}

impl Checkpoints {
    /// Those of the run whose files lie in `run`, if there are any.
    ///
    /// ```
    /// use stovepipe_train::Checkpoints;
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

    /// All that are whole by their names, the oldest first.
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
            // Others have an ending, `.partial` or `.damaged`, or are somebody else's.
            found.extend(Checkpoint::at(&path));
        }
        found.sort();
        Ok(found)
    }

    /// The one that the test set liked best: by accuracy, or by perplexity for text.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn best(&self) -> Result<Option<Checkpoint>, TrainError> {
        Ok(by_test(self.list()?).into_iter().next())
    }

    /// The newest that is not damaged, and those that are, which are put aside.
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

    /// Makes one, and removes those that are not among the `last` newest nor the `best` best.
    pub(crate) fn save<L: Layer>(
        &self,
        contents: &Contents<'_, L>,
        state: &TrainerState,
        (last, best): (usize, usize),
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
            // What is left of it would only take room.
            let _ = fs::remove_dir_all(&partial);
        }
        written?;
        fs::rename(&partial, &path).map_err(TrainError::file(&path))?;
        // That of the checkpoints, of the run, and of the runs: each may be new.
        for folder in self.folder.ancestors().take(3) {
            sums::sync_folder(folder)?;
        }
        self.prune(last, best)
    }

    fn prune(&self, last: usize, best: usize) -> Result<(), TrainError> {
        let all = self.list()?;
        let kept: Vec<_> = by_test(all.clone()).into_iter().take(best).collect();
        let old = all.len().saturating_sub(last.max(1));
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
    let path = folder.join(STANDING);
    let text = toml::to_string(state).map_err(|error| TrainError::Format {
        path: path.clone(),
        reason: error.to_string(),
    })?;
    fs::write(&path, text).map_err(TrainError::file(&path))?;
    sums::seal(folder)
}

/// Those that were tested, the best first, and of equal ones the oldest.
fn by_test(checkpoints: Vec<Checkpoint>) -> Vec<Checkpoint> {
    let tested = checkpoints
        .into_iter()
        .filter_map(|checkpoint| Some((checkpoint.tested()?, checkpoint)));
    let mut tested: Vec<_> = tested.collect();
    tested.sort_by(|(a, _), (b, _)| {
        let ((a, a_next), (b, b_next)) = (a.quality(), b.quality());
        b.total_cmp(&a).then(b_next.total_cmp(&a_next))
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
