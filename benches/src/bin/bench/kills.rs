//! A training that is killed again and again, at random moments: no step may be lost or changed.
//!
//! `cargo build --release -p stovepipe-benches -p stovepipe-cli && target/release/bench kills`

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use clap::Args;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use stovepipe_benches::{
    Failure,
    bench_progress::BenchProgress,
    report::{BenchReport, ReportTable, cell},
};

/// A training that is killed and resumed again and again, next to one that is never killed
#[derive(Args)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Temporary folder for the runs, on the disk to test
    #[arg(long, value_name = "FOLDER", default_value = "target/kills")]
    disk: PathBuf,
    /// The program `stovepipe`
    #[arg(long, value_name = "PATH", default_value = "target/release/stovepipe")]
    program: PathBuf,
    /// Kills, of as many runs as it takes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    kills: usize,
    /// Seed of the moments
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Few kills, to show that the program works
    #[arg(long)]
    quick: bool,
}

const NOTE: &str = "\
`stovepipe train` gets SIGKILL at random moments, and is started again with --resume and another number of stages: 2, 3
and 1 in turn. It makes a checkpoint after each step. Each start must go on from the newest checkpoint that was there,
and nothing may be damaged or panic. A run that ends is compared with one that was never killed, with one stage: both
models byte by byte, and all lines of metrics.jsonl, steps.jsonl and checksums.jsonl but times and memory. Any difference is an error, so
there are results only if there is none. The next run follows. The last one is not killed again.
starting: before it says where it goes on from. first: before there is a checkpoint. saving: a checkpoint is being
written. ending: the files at the end of the run are. between: the rest. resumed: the starts that went on from a
checkpoint. The system outlives each kill, so this is no test of a loss of power.";

/// A small training with everything that has to be kept: an optimizer with states, averages, accumulated gradients,
/// running statistics and random numbers. It is short, so that many kills are near its end.
const TRAINING: &str = "train --layers 3 --filters 4 --drop-path 0.2 --ema 0.99 --accumulate 3 --batch-size 48 \
                        --balance even --checksums --save-every 1 --keep-last 3 --per-class 48 --epochs 2";
const STAGES: [usize; 3] = [2, 3, 1];

/// The files that must be equal.
const MODELS: [&str; 2] = ["model.safetensors", "averaged.safetensors"];
/// The files whose lines must be equal, but for what varies.
const METRICS: [&str; 3] = ["metrics.jsonl", "steps.jsonl", "checksums.jsonl"];
const VARYING: [&str; 5] = [
    "samples_per_second",
    "tokens_per_second",
    "bubble",
    "seconds",
    "memory",
];

/// None of these may be said.
const ALARMS: [&str; 3] = ["panicked", "damaged", "error:"];

/// What a program says on its error stream, in the folder of the runs.
const SAID: &str = "said.txt";
const CHECKPOINTS: &str = "checkpoints";

const POLL: Duration = Duration::from_millis(1);
/// A program that changes nothing for so long hangs.
const HANGS: Duration = Duration::from_secs(300);
/// The most changes, and time after them, before a kill.
const MOST_CHANGES: usize = 12;
const LONGEST: Duration = Duration::from_millis(200);
/// The share of kills that wait for a save. With those that meet one anyway, about half do.
const AIMED: f64 = 0.4;
/// Kills from one line of progress to the next.
const EVERY: usize = 10;

/// Where a kill fell, as far as can be told from outside.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Starting,
    First,
    Saving,
    Between,
    Ending,
}

const PHASES: [(Phase, &str); 5] = [
    (Phase::Starting, "starting"),
    (Phase::First, "first"),
    (Phase::Saving, "saving"),
    (Phase::Between, "between"),
    (Phase::Ending, "ending"),
];

/// When a program is killed.
#[derive(Clone, Copy)]
struct Moment {
    /// So often, names have come to the run's folder, or gone from it.
    changes: usize,
    /// Then, a checkpoint is being written, or it does not matter.
    in_save: bool,
    /// And then so much time has passed.
    delay: Duration,
}

impl Moment {
    fn draw(draws: &mut ChaCha8Rng) -> Self {
        Self {
            changes: draws.random_range(0..MOST_CHANGES),
            in_save: draws.random_bool(AIMED),
            // In a save and at the end, one change follows another within milliseconds: most delays are short.
            delay: LONGEST.mul_f64(draws.random::<f64>().powi(4)),
        }
    }
}

/// A start of the program that is over.
struct Start {
    began: SystemTime,
    said: String,
    /// If not, it has done all it was to do.
    is_killed: bool,
}

impl Start {
    /// The checkpoint that it went on from, "" for the beginning; `None` if it was killed before it said so, or had
    /// nothing to do.
    fn goes_on_from(&self) -> Option<&str> {
        self.said.lines().find_map(|line| {
            if line.starts_with("no checkpoint in ") {
                return Some("");
            }
            let is_resumed = line.starts_with("resuming after ");
            line.rsplit(' ').next().filter(|_| is_resumed)
        })
    }
}

/// A result of a run that must be equal, with what it is called.
type Part = (String, Vec<u8>);

/// The kills so far.
struct Trial {
    program: PathBuf,
    /// Has the folders of the runs.
    folder: PathBuf,
    draws: ChaCha8Rng,
    /// The results of the run that is never killed.
    whole: Vec<Part>,
    killed: Vec<Phase>,
    starts: usize,
    /// Starts that went on from a checkpoint.
    resumed: usize,
    /// Runs that came to their end, and were equal.
    complete: usize,
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    if !flags.program.is_file() {
        let program = flags.program.display();
        let build = "cargo build --release -p stovepipe-cli";
        return Err(format!("{program} is not there: `{build}`, or name it with --program").into());
    }
    let kills = if flags.quick { 4 } else { flags.kills };
    let settings = json!({
        "disk": flags.disk, "kills": kills, "seed": flags.seed, "training": TRAINING, "quick": flags.quick,
    });
    let mut report = BenchReport::begin("kills", &settings)?;
    report.note(NOTE);
    fs::create_dir_all(&flags.disk)?;
    let folder = tempfile::Builder::new()
        .prefix("kills-")
        .tempdir_in(&flags.disk)?;
    let mut trial = Trial {
        program: flags.program,
        folder: folder.path().to_owned(),
        draws: ChaCha8Rng::seed_from_u64(flags.seed),
        whole: Vec::new(),
        killed: Vec::new(),
        starts: 0,
        resumed: 0,
        complete: 0,
    };
    let began = Instant::now();
    if let Err(error) = trial.run(kills) {
        let (number, seed, kept) = (trial.killed.len(), flags.seed, folder.keep());
        let kept = kept.display();
        return Err(format!("after kill {number} of seed {seed}: {error}\n{kept} is kept").into());
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut phases = ReportTable::new("kills by phase");
    for (phase, name) in PHASES {
        let count = trial.killed.iter().filter(|own| **own == phase).count();
        phases.row([
            cell("phase", "phase", 0, name),
            cell("kills", "kills", 0, count),
            cell("percent", "%", 1, 100.0 * count as f64 / kills as f64),
        ]);
    }
    report.table(phases);
    let mut table = ReportTable::new("what came of them");
    table.row([
        cell("kills", "kills", 0, trial.killed.len()),
        cell("starts", "starts", 0, trial.starts),
        cell("resumed", "resumed", 0, trial.resumed),
        cell("complete", "complete, equal runs", 0, trial.complete),
        cell("seconds", "s", 0, seconds),
    ]);
    report.table(table);
    report.save(&flags.out)
}

impl Trial {
    fn run(&mut self, kills: usize) -> Result<(), Failure> {
        let whole = self.folder.join("whole");
        self.start(&whole, "--stages 1", None)?;
        self.whole = results(&whole)?;
        let mut progress = BenchProgress::new(kills);
        while self.killed.len() < kills {
            let moment = Moment::draw(&mut self.draws);
            let Some(phase) = self.go_on(Some(moment))? else {
                continue;
            };
            self.killed.push(phase);
            let (count, complete) = (self.killed.len(), self.complete);
            if count.is_multiple_of(EVERY) {
                progress.done(&format!("{count} kills, {complete} complete runs"));
            } else {
                progress.skip();
            }
        }
        self.go_on(None).map(drop)
    }

    /// Starts the program once more. Returns the phase in which it was killed. If it came to its end, the run is
    /// compared, and the next start begins another one.
    fn go_on(&mut self, moment: Option<Moment>) -> Result<Option<Phase>, Failure> {
        let run = self.folder.join(format!("broken-{}", self.complete));
        let stages = STAGES[self.starts % STAGES.len()];
        let before = newest(&run);
        self.starts += 1;
        let start = self.start(&run, &format!("--resume --stages {stages}"), moment)?;
        if newest(&run) < before {
            return Err(format!("the checkpoint {before} is lost").into());
        }
        if let Some(from) = start.goes_on_from() {
            if from != before {
                return Err(format!(
                    "the newest checkpoint was \"{before}\", but the program went on from \"{from}\""
                )
                .into());
            }
            self.resumed += usize::from(!from.is_empty());
        }
        if start.is_killed {
            return Ok(Some(phase(&run, &start)));
        }
        let own = results(&run)?;
        if let Some(part) = first_other(&own, &self.whole) {
            let (program, whole) = (self.program.display(), self.folder.join("whole"));
            let command = format!("{program} compare {} {}", whole.display(), run.display());
            let what = "is not that of the run that was never killed";
            return Err(format!("{part} {what}: {command}").into());
        }
        fs::remove_dir_all(&run)?;
        self.complete += 1;
        Ok(None)
    }

    /// Starts the program, and kills it at a moment, unless it is over by then. Without a moment, waits for its end.
    fn start(&self, run: &Path, flags: &str, moment: Option<Moment>) -> Result<Start, Failure> {
        let said = self.folder.join(SAID);
        let began = SystemTime::now();
        let mut child = Command::new(&self.program)
            .args(TRAINING.split_whitespace())
            .args(flags.split_whitespace())
            .arg("--out")
            .arg(run)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said)?)
            .spawn()?;
        let hangs = !wait(&mut child, run, began, moment);
        // Of no effect if it is over.
        child.kill()?;
        let status = child.wait()?;
        let said = String::from_utf8_lossy(&fs::read(&said)?).into_owned();
        if hangs {
            return Err(format!("nothing changes for {} s: {said}", HANGS.as_secs()).into());
        }
        let is_killed = moment.is_some() && is_by_kill(status);
        let is_alarming = ALARMS.iter().any(|alarm| said.contains(alarm));
        if is_alarming || !(is_killed || status.success()) {
            return Err(format!("the program ended with {status}: {said}").into());
        }
        Ok(Start {
            began,
            said,
            is_killed,
        })
    }
}

/// Whether a program ended so because it was killed, and not by a fault of its own.
#[cfg(unix)]
fn is_by_kill(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;

    status.signal() == Some(9)
}

#[cfg(not(unix))]
fn is_by_kill(status: ExitStatus) -> bool {
    !status.success()
}

/// Waits for a moment, or until the program is over. Returns false if it hangs.
fn wait(child: &mut Child, run: &Path, began: SystemTime, moment: Option<Moment>) -> bool {
    let (mut changes, mut before, mut changed) = (0, names(run), Instant::now());
    let is_early = |changes: usize, moment: Moment| {
        changes < moment.changes || (moment.in_save && !is_saving(run, began))
    };
    while moment.is_none_or(|moment| is_early(changes, moment)) {
        let is_running = child.try_wait().is_ok_and(|status| status.is_none());
        if !is_running {
            return true;
        }
        let now = names(run);
        if now != before {
            (before, changed) = (now, Instant::now());
            changes += 1;
        }
        if changed.elapsed() > HANGS {
            return false;
        }
        thread::sleep(POLL);
    }
    if let Some(moment) = moment {
        thread::sleep(moment.delay);
    }
    true
}

/// Where a program was when it was killed: nothing has changed since.
fn phase(run: &Path, start: &Start) -> Phase {
    let is_ending = || run.exists() || is_since(&partial(run).join(MODELS[0]), start.began);
    if start.goes_on_from().is_none() {
        Phase::Starting
    } else if is_saving(run, start.began) {
        Phase::Saving
    } else if newest(run).is_empty() {
        Phase::First
    } else if is_ending() {
        Phase::Ending
    } else {
        Phase::Between
    }
}

/// Whether a checkpoint has been begun since that time, and has no name yet. An older one is of an earlier start.
fn is_saving(run: &Path, began: SystemTime) -> bool {
    let is_partial = |path: &Path| path.extension().is_some_and(|ending| ending == "partial");
    let mut found = paths(&partial(run).join(CHECKPOINTS)).into_iter();
    found.any(|path| is_partial(&path) && is_since(&path, began))
}

fn is_since(path: &Path, began: SystemTime) -> bool {
    let modified = fs::metadata(path).and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified >= began)
}

/// The name of a run's newest checkpoint, "" if it has none: names are ordered by time.
fn newest(run: &Path) -> String {
    let folders = [partial(run), run.to_owned()].into_iter();
    let found = folders.flat_map(|folder| paths(&folder.join(CHECKPOINTS)));
    let names = found.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    // Those with a suffix are not complete.
    let complete = names.filter(|name| !name.contains('.'));
    complete.max().unwrap_or_default()
}

/// All that is in a run's folder, and in that of its checkpoints.
fn names(run: &Path) -> Vec<PathBuf> {
    let folder = partial(run);
    [paths(&folder), paths(&folder.join(CHECKPOINTS))].concat()
}

/// Where a run's files are until it is complete.
fn partial(run: &Path) -> PathBuf {
    run.with_added_extension("partial")
}

/// What is in a folder, in order; nothing if it is not there.
fn paths(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths
}

/// The results of a run, without what varies.
fn results(run: &Path) -> Result<Vec<Part>, Failure> {
    let read = |name: &str| {
        let path = run.join(name);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut parts = Vec::new();
    for name in MODELS {
        parts.push((name.to_owned(), read(name)?));
    }
    for name in METRICS {
        let text = String::from_utf8(read(name)?)?;
        for (index, line) in text.lines().enumerate() {
            let mut line: Value = serde_json::from_str(line)?;
            if let Some(values) = line.as_object_mut() {
                values.retain(|key, _| !VARYING.contains(&key.as_str()));
            }
            let name = format!("{name}, line {}", index + 1);
            parts.push((name, line.to_string().into_bytes()));
        }
    }
    Ok(parts)
}

/// What the first part is called that differs, or that only one has.
fn first_other<'a>(own: &'a [Part], whole: &'a [Part]) -> Option<&'a str> {
    let mut places = 0..own.len().max(whole.len());
    let place = places.find(|&place| own.get(place) != whole.get(place))?;
    let part = whole.get(place).or(own.get(place));
    part.map(|(name, _)| name.as_str())
}
