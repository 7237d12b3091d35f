//! Trains two runs again, from the last checkpoint that is the same, and compares every pass.

use std::{
    env, fs,
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use stovepipe::{
    schedule::count,
    train::{
        RunFolder,
        checkpoint::{Checkpoint, Checkpoints},
    },
};
use stovepipe_report::{Comparison, RunSettings, first_other_step, first_other_sum};

use super::{place, tensors::first_other_tensor};
use crate::{
    error::{CliError, usage},
    files::{CHECKSUMS, CONFIG},
    output,
};

/// How often the file of a run that trains again is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

pub struct Replay<'a> {
    /// What the user calls the runs.
    pub named: [&'a PathBuf; 2],
    pub runs: &'a [PathBuf; 2],
    pub comparison: &'a Comparison,
    pub layers: &'a [String],
}

impl Replay<'_> {
    /// Trains both until a step that differs, and says what differs first.
    pub fn until(&self, step: usize) -> Result<String, CliError> {
        for (run, name) in self.comparison.runs.iter().zip(self.named) {
            check_can_replay(&run.settings, name)?;
        }
        let begin = self.last_same(step)?;
        let from = begin.as_ref().map_or_else(
            || "from the start".to_owned(),
            |[first, _]| format!("from checkpoint {}", first.name()),
        );
        let parent = tempfile::tempdir().map_err(CliError::file(&env::temp_dir()))?;
        let mut again = Vec::new();
        for (index, own) in ["a", "b"].into_iter().enumerate() {
            let name = self.named[index].display();
            output::say(&format!("training {name} again {from} to step {step}\n"));
            let begin = begin.as_ref().map(|both| &both[index]);
            let trained = train_again(&self.runs[index], begin, &parent.path().join(own), step);
            again.push(trained.map_err(|error| {
                usage!("{name} could not be trained again to step {step}: {error}")
            })?);
        }
        let compared = first_other_sum([&again[0], &again[1]])?;
        Ok(match compared.other {
            Some((step, other)) => format!(
                "replayed {from}: step {step} is the first that differs: {}\n",
                place(&other, self.layers)
            ),
            None => {
                let steps = count(compared.same, "step");
                let mut text = format!("replayed {from}: both are the same in {steps}\n");
                for index in 0..2 {
                    text += &self.against_itself(index, &again[index])?;
                }
                text
            }
        })
    }

    /// Says where a run differs from itself, trained again.
    fn against_itself(&self, index: usize, again: &Path) -> Result<String, CliError> {
        let (run, name) = (&self.runs[index], self.named[index].display());
        let why =
            "that does not happen again: a fault of the memory or the device may have caused it";
        let sums = first_other_sum([run, again])?;
        if let Some((step, other)) = sums.other {
            let place = place(&other, self.layers);
            return Ok(format!(
                "{name} was different in step {step}: {place}; {why}\n"
            ));
        }
        let steps = first_other_step(run, again)?;
        Ok(match steps.other {
            Some([step, _]) => format!("{name} was different in step {}: {why}\n", step.step),
            None => format!("{name} was the same\n"),
        })
    }

    /// The newest checkpoint before a step in which both runs have the same tensors.
    fn last_same(&self, step: usize) -> Result<Option<[Checkpoint; 2]>, CliError> {
        let of_second = Checkpoints::of(&self.runs[1]).list()?;
        for first in Checkpoints::of(&self.runs[0]).list()?.into_iter().rev() {
            let mut others = of_second.iter();
            let Some(second) = others.find(|other| other.name() == first.name()) else {
                continue;
            };
            if first.steps()? < step as u64 && have_same_tensors(&first, second)? {
                return Ok(Some([first, second.clone()]));
            }
        }
        Ok(None)
    }
}

fn check_can_replay(settings: &RunSettings, name: &Path) -> Result<(), CliError> {
    let name = name.display();
    if settings.tables.is_empty() {
        return Err(usage!(
            "--replay: {name} has no {CONFIG}: only runs of stovepipe train can be trained again"
        ));
    }
    let schedule = settings.get("pipeline", "schedule").unwrap_or_default();
    if schedule.contains("pipedream") {
        return Err(usage!(
            "--replay: {name} was trained with the schedule {schedule}, whose passes have no checksums: compare runs of \
             another schedule"
        ));
    }
    Ok(())
}

fn have_same_tensors(first: &Checkpoint, second: &Checkpoint) -> Result<bool, CliError> {
    for path in files(first.path())? {
        let is_tensors = path
            .extension()
            .is_some_and(|ending| ending == "safetensors");
        let other = second.path().join(path.file_name().unwrap_or_default());
        if is_tensors && (!other.exists() || first_other_tensor([&path, &other])?.is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(CliError::file(folder))?.into_iter();
    Ok(entries.map(|entry| entry.path()).collect())
}

/// Trains a run again as `folder`, until it has the sums of a step. Returns where its files are. It is another program:
/// this one has no model.
fn train_again(
    run: &Path,
    begin: Option<&Checkpoint>,
    folder: &Path,
    step: usize,
) -> Result<PathBuf, CliError> {
    let program = env::current_exe().map_err(CliError::file(Path::new("stovepipe")))?;
    let mut command = Command::new(program);
    command.args([
        "train",
        "--checksums",
        "passes",
        "--save-every",
        "0",
        "--out",
    ]);
    command.arg(folder).stdout(Stdio::null());
    match begin {
        Some(begin) => {
            let partial = folder.with_added_extension("partial");
            copy_files(
                begin.path(),
                &partial.join("checkpoints").join(begin.name()),
            )?;
            copy_files(run, &partial)?;
            command.arg("--resume");
        }
        None => {
            command.arg("--config").arg(run.join(CONFIG));
        }
    }
    let mut child = command
        .spawn()
        .map_err(CliError::file(Path::new("stovepipe")))?;
    let mut read = 0;
    loop {
        let ended = child.try_wait().map_err(CliError::file(folder))?;
        let found = RunFolder::find(folder);
        if let Some(found) = found
            && newest_step(&found.join(CHECKSUMS), &mut read)? >= step as u64
        {
            // Nothing that it could still write is needed.
            let _ = child.kill();
            child.wait().map_err(CliError::file(folder))?;
            return RunFolder::find(folder).ok_or_else(|| usage!("its folder is gone"));
        }
        if let Some(status) = ended {
            return Err(usage!("{status}"));
        }
        thread::sleep(INTERVAL);
    }
}

/// Copies the files of a folder that training reads: not its logs, nor what lies deeper.
fn copy_files(from: &Path, to: &Path) -> Result<(), CliError> {
    fs::create_dir_all(to).map_err(CliError::file(to))?;
    for file in files(from)? {
        let is_log = file.extension().is_some_and(|ending| ending == "jsonl");
        if file.is_file() && !is_log {
            let copy = to.join(file.file_name().unwrap_or_default());
            fs::copy(&file, &copy).map_err(CliError::file(&file))?;
        }
    }
    Ok(())
}

/// The step of the newest whole line after what was read, or 0. Lines are read once.
fn newest_step(path: &Path, read: &mut u64) -> Result<u64, CliError> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(CliError::file(path)(error)),
    };
    let mut new = Vec::new();
    let got = file
        .seek(SeekFrom::Start(*read))
        .and_then(|_| file.read_to_end(&mut new));
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
