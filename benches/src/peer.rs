//! PyTorch beside us: child processes that run a step whenever they are told to, so that both are
//! measured in the same minutes.
//!
//! One process is one device; a pipeline is one a stage. They are told by a line to go on and answer by
//! a line when they are done, and in between they wait for their input.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use serde::Deserialize;
use stovepipe::{pipeline::Precision, schedule::Rule};
use tempfile::TempDir;

use crate::{Failure, measure::Cost, recipe::Shape};

/// The peer's script.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/step.py");

/// What to do where there is no PyTorch.
const ADVICE: &str = "make an environment that has PyTorch, and name its Python:\n  \
    python3 -m venv target/pytorch\n  \
    target/pytorch/bin/pip install -r benches/peers/requirements.txt\n  \
    --python target/pytorch/bin/python";

/// How long OpenMP's threads are given to fall asleep after a step: they spin for a while, and
/// would take the processor from whoever has the next turn.
const SETTLE: Duration = Duration::from_millis(100);

/// How long a step may take. Stages of which one hangs would wait for each other for ever.
const LIMIT: Duration = Duration::from_secs(600);

/// A step in PyTorch: forward, backward, and the update if there is a learning rate.
pub struct Peer {
    stages: Vec<Process>,
    answers: Receiver<Answer>,
    /// The number of the whole model's parameters.
    pub parameters: usize,
    /// PyTorch's version.
    pub version: String,
    /// Where stages find each other.
    _folder: TempDir,
}

/// What a stage said; nothing if it has ended.
type Answer = (usize, Option<String>);

/// One of its processes.
struct Process {
    child: Child,
    orders: Option<ChildStdin>,
}

/// What a process says first.
#[derive(Deserialize)]
#[serde(untagged)]
enum Hello {
    Ready { parameters: usize, version: String },
    Missing { missing: String },
}

/// What the peer is to run.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// The Python to run it with.
    pub python: &'a str,
    /// The model's sizes.
    pub shape: Shape,
    /// The number of classes.
    pub classes: usize,
    /// Samples in a mini-batch.
    pub batch: usize,
    /// Where it is run.
    pub way: Way,
    /// Micro-batches of a mini-batch, equal ones.
    pub micro_batches: usize,
    /// AdamW's learning rate; nothing for no update.
    pub rate: Option<f64>,
    /// Whether each step has another mini-batch.
    pub vary: bool,
    /// Where the weights are written before the first step.
    pub save: Option<PathBuf>,
    /// Whether maps lie in memory with channels last.
    pub channels_last: bool,
    /// Whether it computes in double precision.
    pub double: bool,
}

/// Where PyTorch runs.
#[derive(Clone, Debug)]
pub enum Way {
    /// In one process.
    OneDevice {
        /// PyTorch's threads.
        threads: usize,
    },
    /// On a GPU.
    Card {
        /// What PyTorch calls it.
        device: String,
        /// f32, or what `autocast` computes in.
        precision: Precision,
        /// Whether `torch.compile` made one program of the model.
        compiled: bool,
    },
    /// In a process of one thread for each stage, by `torch.distributed.pipelining`.
    Pipeline {
        /// The layers of each stage.
        cut: Vec<usize>,
        /// 1F1B or GPipe.
        schedule: Rule,
    },
}

/// What a step came to.
#[derive(Clone, Copy, Debug)]
pub struct StepDone {
    /// Seconds, by the clock of the stage that took longest.
    pub seconds: f64,
    /// The loss, of the last stage.
    pub loss: f64,
}

impl Peer {
    /// Starts the processes and waits until they have made the model, and run a first step if steps do
    /// not vary.
    ///
    /// # Errors
    ///
    /// If there is no such Python, or no PyTorch in it that has what it takes; the error says what to
    /// do.
    pub fn start(task: &Task<'_>) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let stages = match &task.way {
            Way::OneDevice { .. } | Way::Card { .. } => 1,
            Way::Pipeline { cut, .. } => cut.len(),
        };
        let (answer, answers) = channel();
        let mut peer = Self {
            stages: Vec::new(),
            answers,
            parameters: 0,
            version: String::new(),
            _folder: folder,
        };
        let store = peer._folder.path().join("store");
        for stage in 0..stages {
            let mut flags = flags(task);
            if let Way::Pipeline { .. } = &task.way {
                flags.extend(["--stage".to_owned(), stage.to_string()]);
                flags.extend(["--store".to_owned(), store.display().to_string()]);
            }
            let process = Process::start(task.python, flags, stage, answer.clone())?;
            peer.stages.push(process);
        }
        drop(answer);
        for _ in 0..stages {
            let (_, hello) = peer.answer()?;
            (peer.parameters, peer.version) = understood(task.python, &hello)?;
        }
        Ok(peer)
    }

    /// Runs steps for at least `least`. Returns the mean cost of one, by the processes' clocks.
    ///
    /// # Errors
    ///
    /// If a process is gone.
    pub fn turn(&mut self, least: Duration) -> Result<Cost, Failure> {
        let (mut seconds, mut steps) = (0.0, 0);
        while steps == 0 || seconds < least.as_secs_f64() {
            seconds += self.step()?.seconds;
            steps += 1;
        }
        thread::sleep(SETTLE);
        Ok(Cost {
            seconds: seconds / f64::from(steps),
            processor: f64::NAN, // another process's
        })
    }

    /// Runs a step.
    ///
    /// # Errors
    ///
    /// If a process is gone.
    pub fn step(&mut self) -> Result<StepDone, Failure> {
        for stage in &mut self.stages {
            let orders = stage.orders.as_mut().ok_or("the peer has no input")?;
            // One that has ended says so below.
            let _ = orders.write_all(b"\n").and_then(|()| orders.flush());
        }
        let mut done = StepDone {
            seconds: 0.0,
            loss: f64::NAN,
        };
        for _ in 0..self.stages.len() {
            let (stage, answer) = self.answer()?;
            let mut numbers = answer.split_whitespace().map(str::parse::<f64>);
            let (Some(Ok(seconds)), Some(Ok(loss))) = (numbers.next(), numbers.next()) else {
                return Err(format!("PyTorch's process says {answer:?}").into());
            };
            done.seconds = done.seconds.max(seconds);
            if stage + 1 == self.stages.len() {
                done.loss = loss;
            }
        }
        Ok(done)
    }

    /// The next line that a stage says.
    fn answer(&self) -> Result<(usize, String), Failure> {
        match self.answers.recv_timeout(LIMIT) {
            Ok((stage, Some(line))) => Ok((stage, line)),
            Ok((stage, None)) => Err(self.gone(stage)),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone(0)),
            Err(RecvTimeoutError::Timeout) => {
                let minutes = LIMIT.as_secs() / 60;
                Err(format!("PyTorch did not answer for {minutes} minutes").into())
            }
        }
    }

    fn gone(&self, stage: usize) -> Failure {
        match self.stages.len() {
            1 => "PyTorch's process has ended; what it said is above".into(),
            _ => format!("PyTorch's stage {stage} has ended; what it said is above").into(),
        }
    }
}

impl Drop for Peer {
    /// The processes would end with their input, but for stages that wait for one that is gone.
    fn drop(&mut self) {
        for stage in &mut self.stages {
            let _ = stage.child.kill();
            let _ = stage.child.wait();
        }
    }
}

impl Process {
    fn start(
        python: &str,
        flags: Vec<String>,
        stage: usize,
        answers: Sender<Answer>,
    ) -> Result<Self, Failure> {
        let mut child = Command::new(python)
            .arg("-B") // leaves no compiled files in the sources
            .arg(SCRIPT)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("`{python}` cannot be run ({error}): {ADVICE}"))?;
        let orders = child.stdin.take();
        let output = child.stdout.take();
        thread::spawn(move || output.map(|output| listen(stage, output, &answers)));
        Ok(Self { child, orders })
    }
}

/// Passes on what a process says, and that it has ended.
fn listen(stage: usize, output: ChildStdout, answers: &Sender<Answer>) {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    for line in lines.map(Some).chain([None]) {
        if answers.send((stage, line)).is_err() {
            return;
        }
    }
}

fn understood(python: &str, hello: &str) -> Result<(usize, String), Failure> {
    match serde_json::from_str(hello) {
        Ok(Hello::Ready {
            parameters,
            version,
        }) => Ok((parameters, version)),
        Ok(Hello::Missing { missing }) => {
            let message = format!("`{python}` has no PyTorch that can do this ({missing})");
            Err(format!("{message}: {ADVICE}").into())
        }
        Err(_) => Err(format!("`{python}` failed; it says why above ({hello:?})").into()),
    }
}

fn flags(task: &Task<'_>) -> Vec<String> {
    let sizes = match task.shape {
        Shape::Amoebanet {
            layers,
            filters,
            side,
            large,
        } => {
            let stride = if large { 2 } else { 1 };
            format!(
                "--model amoebanet --layers {layers} --filters {filters} --side {side} --stride {stride}"
            )
        }
        Shape::Transformer {
            layers,
            d,
            heads,
            length,
        } => format!(
            "--model transformer --layers {layers} --d {d} --heads {heads} --length {length}"
        ),
    };
    let Task {
        classes,
        batch,
        micro_batches,
        ..
    } = task;
    let run = format!("--classes {classes} --batch {batch} --micro-batches {micro_batches}");
    let way = match &task.way {
        Way::OneDevice { threads } => format!("--threads {threads}"),
        Way::Card {
            device,
            precision,
            compiled,
        } => {
            let compiled = if *compiled { " --compile" } else { "" };
            format!("--device {device} --precision {precision}{compiled}")
        }
        Way::Pipeline { cut, schedule } => {
            let cut: Vec<_> = cut.iter().map(usize::to_string).collect();
            format!("--cut {} --schedule {}", cut.join(" "), schedule.name())
        }
    };
    let mut flags: Vec<_> = [sizes, run, way]
        .iter()
        .flat_map(|flags| flags.split(' ').map(str::to_owned))
        .collect();
    if let Some(rate) = task.rate {
        flags.extend(["--rate".to_owned(), rate.to_string()]);
    }
    if let Some(path) = &task.save {
        flags.extend(["--save".to_owned(), path.display().to_string()]);
    }
    let switches = [
        ("--vary", task.vary),
        ("--channels-last", task.channels_last),
        ("--double", task.double),
    ];
    let switches = switches.iter().filter(|(_, on)| *on);
    flags.extend(switches.map(|(name, _)| (*name).to_owned()));
    flags
}
