//! Trains two runs again, from the last checkpoint that is the same, and compares every pass.

use std::{
    env, fs,
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::Value;
use signal_hook::{consts, flag};
use stovepipe::{
    schedule::count,
    train::{
        RunFolder,
        checkpoint::{Checkpoint, Checkpoints},
        settings::AllReduceSetting,
    },
};
use stovepipe_report::{first_other_step, first_other_sum};

use super::{
    place,
    tensors::{Compared, compare, files},
};
use crate::{
    error::{CliError, usage},
    files::{CHECKSUMS, CONFIG, TOKENIZER},
    output,
    settings::Settings,
};

/// How often the files of a run that trains again are looked at.
const INTERVAL: Duration = Duration::from_millis(50);

pub struct Replay<'a> {
    /// What the user calls the runs.
    pub named: [&'a PathBuf; 2],
    pub runs: &'a [PathBuf; 2],
    /// The names of the model's layers.
    pub layers: &'a [String],
}

impl Replay<'_> {
    /// Trains both until a step that differs, and says what differs first. `None` if the user ends it.
    pub fn until(&self, step: usize) -> Result<Option<String>, CliError> {
        for (run, name) in self.runs.iter().zip(self.named) {
            check_can_replay(run, name)?;
        }
        let asked_to_end = Arc::new(AtomicBool::new(false));
        for signal in [consts::SIGINT, consts::SIGTERM] {
            flag::register(signal, asked_to_end.clone()).map_err(CliError::Signal)?;
        }
        let begin = self.last_same(step)?;
        let from = begin.as_ref().map_or_else(
            || "from the start".to_owned(),
            |[first, _]| format!("from checkpoint {}", first.name()),
        );
        // Beside the run, so that the checkpoint can be linked.
        let beside = self.runs[0].parent().unwrap_or(Path::new("."));
        let parent = tempfile::Builder::new()
            .prefix(".replay-")
            .tempdir_in(beside);
        let parent = parent.map_err(CliError::file(beside))?;
        let mut again = Vec::new();
        for (index, own) in ["a", "b"].into_iter().enumerate() {
            let name = self.named[index].display();
            output::say(&format!("training {name} again {from} to step {step}\n"));
            let begin = begin.as_ref().map(|both| &both[index]);
            let folder = parent.path().join(own);
            prepare(&self.runs[index], begin, &folder)?;
            match train_to(step, &folder, &asked_to_end) {
                Ok(Some(folder)) => again.push(folder),
                Ok(None) => return Ok(None),
                Err(error) => {
                    return Err(usage!(
                        "{name} could not be trained again to step {step}: {error}"
                    ));
                }
            }
        }
        let mut from_itself = Vec::new();
        for ((run, name), again) in self.runs.iter().zip(self.named).zip(&again) {
            let other = first_other_step(run, again)?.other;
            if let Some([then, now]) = &other
                && then.learning_rate != now.learning_rate
            {
                let (name, step) = (name.display(), then.step);
                return Ok(Some(format!(
                    "replay: {name} had another learning rate in step {step}: it was resumed with other settings, so \
                     it cannot be trained again\n"
                )));
            }
            from_itself.push(other.map(|[then, _]| then.step));
        }
        let compared = first_other_sum([&again[0], &again[1]])?;
        Ok(Some(match compared.other {
            Some((step, other)) => format!(
                "replayed {from}: step {step} is the first that differs: {}\n",
                place(&other, self.layers)
            ),
            None => {
                let steps = count(compared.same, "step");
                let mut text = format!("replayed {from}: both are the same in {steps}\n");
                for (index, again) in again.iter().enumerate() {
                    text += &self.against_itself(index, again, from_itself[index])?;
                }
                text
            }
        }))
    }

    /// Says where a run differs from itself, trained again. `step` is the first one that does, by its log.
    fn against_itself(
        &self,
        index: usize,
        again: &Path,
        step: Option<usize>,
    ) -> Result<String, CliError> {
        let (run, name) = (&self.runs[index], self.named[index].display());
        let what = match (first_other_sum([run, again])?.other, step) {
            (Some((step, other)), _) => format!("step {step}: {}", place(&other, self.layers)),
            (None, Some(step)) => format!("step {step}"),
            (None, None) => return Ok(format!("{name} was the same\n")),
        };
        Ok(format!(
            "{name} was different in {what}; that does not happen again: a memory or a device may have failed, or \
             its rounding differs from run to run\n"
        ))
    }

    /// The newest checkpoint before a step in which both runs have the same tensors. Those that cannot be read do not
    /// count.
    fn last_same(&self, step: usize) -> Result<Option<[Checkpoint; 2]>, CliError> {
        let of_second = Checkpoints::of(&self.runs[1]).list()?;
        for first in Checkpoints::of(&self.runs[0]).list()?.into_iter().rev() {
            let mut others = of_second.iter();
            let Some(second) = others.find(|other| other.name() == first.name()) else {
                continue;
            };
            let is_before = first.steps().is_ok_and(|steps| steps < step as u64);
            if is_before && matches!(compare([&first, second]), Ok(Compared::Same)) {
                return Ok(Some([first, second.clone()]));
            }
        }
        Ok(None)
    }
}

fn check_can_replay(run: &Path, name: &Path) -> Result<(), CliError> {
    let (config, name) = (run.join(CONFIG), name.display());
    if !config.is_file() {
        return Err(usage!(
            "--replay: {name} has no {CONFIG}: only runs of stovepipe train can be trained again"
        ));
    }
    let pipeline = Settings::load(&config)?.pipeline;
    if pipeline.schedule.is_asynchronous() {
        let schedule = &pipeline.schedule;
        return Err(usage!(
            "--replay: {name} was trained with the schedule {schedule}, whose passes have no checksums"
        ));
    }
    if pipeline.all_reduce == AllReduceSetting::Mpi {
        return Err(usage!(
            "--replay: {name} was trained with --all-reduce mpi, which adds up gradients in an order of its own"
        ));
    }
    Ok(())
}

/// Puts what a run needs to resume where a run `folder` has it.
fn prepare(run: &Path, begin: Option<&Checkpoint>, folder: &Path) -> Result<(), CliError> {
    let partial = folder.with_added_extension("partial");
    fs::create_dir(&partial).map_err(CliError::file(&partial))?;
    for name in [CONFIG, TOKENIZER] {
        let file = run.join(name);
        if file.is_file() {
            fs::copy(&file, partial.join(name)).map_err(CliError::file(&file))?;
        }
    }
    let Some(begin) = begin else {
        return Ok(());
    };
    let to = partial.join("checkpoints").join(begin.name());
    fs::create_dir_all(&to).map_err(CliError::file(&to))?;
    for file in files(begin.path())? {
        // Checkpoints never change, so links will do where there are any.
        let link = to.join(file.file_name().unwrap_or_default());
        let linked = fs::hard_link(&file, &link).or_else(|_| fs::copy(&file, &link).map(drop));
        linked.map_err(CliError::file(&file))?;
    }
    Ok(())
}

/// A program that ends when nobody waits for it any more.
struct Training(Child);

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Resumes a run, until it has the sums of a step. Returns where its files are; `None` if it is to end before. It is
/// another program, which is killed then: --max-steps would change the learning rates.
fn train_to(
    step: usize,
    folder: &Path,
    asked_to_end: &AtomicBool,
) -> Result<Option<PathBuf>, CliError> {
    let program = || Path::new("stovepipe");
    let mut command = Command::new(env::current_exe().map_err(CliError::file(program()))?);
    command.args([
        "train",
        "--resume",
        "--checksums",
        "passes",
        "--save-every",
        "0",
        "--out",
    ]);
    command
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut training = Training(command.spawn().map_err(CliError::file(program()))?);
    let mut read = 0;
    while !asked_to_end.load(Ordering::SeqCst) {
        let ended = training.0.try_wait().map_err(CliError::file(program()))?;
        let found = RunFolder::find(folder);
        if let Some(found) = found
            && newest_step(&found.join(CHECKSUMS), &mut read)? >= step as u64
        {
            drop(training);
            return Ok(RunFolder::find(folder));
        }
        match ended {
            Some(status) if status.success() => return Err(usage!("it ended before that step")),
            Some(_) => return Err(usage!("see the error above")),
            None => thread::sleep(INTERVAL),
        }
    }
    Ok(None)
}

/// The step of the newest whole line after what was read, or 0. Lines are read once.
fn newest_step(path: &Path, read: &mut u64) -> Result<u64, CliError> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(CliError::file(path)(error)),
    };
    let mut new = Vec::new();
    let got = (file.seek(SeekFrom::Start(*read))).and_then(|_| file.read_to_end(&mut new));
    got.map_err(CliError::file(path))?;
    let whole = new
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |end| end + 1);
    *read += whole as u64;
    let mut lines = new[..whole].split(|&byte| byte == b'\n');
    let step = |line: &[u8]| serde_json::from_slice::<Value>(line).ok()?["step"].as_u64();
    Ok(lines
        .rfind(|line| !line.is_empty())
        .and_then(step)
        .unwrap_or(0))
}
