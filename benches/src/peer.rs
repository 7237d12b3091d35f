//! PyTorch next to us: child processes that run a step when they are asked to, so that both sides
//! are measured in the same minutes.
//!
//! One process is one device; a pipeline has one for each stage of each replica. A line asks a process
//! for a step, a line is its answer, and in between it waits for input.

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

use crate::{
    Failure,
    bench_model::BenchModel,
    measure::TurnCost,
    recipe::{CLASSES, ModelShape},
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/step.py");

const ADVICE: &str = "make an environment that has PyTorch, and name its Python:\n  \
    python3 -m venv target/pytorch\n  \
    target/pytorch/bin/pip install -r benches/peers/requirements.txt\n  \
    --python target/pytorch/bin/python";

/// The time that OpenMP's threads get to fall asleep after a step: they spin for a while, and would
/// take the processor from the next configuration.
const SETTLE: Duration = Duration::from_millis(100);

/// The timeout of a step. Stages of which one hangs would wait for each other for ever.
const LIMIT: Duration = Duration::from_secs(600);

/// A training in PyTorch: forward, backward, and the update if there is a learning rate.
pub struct Peer {
    /// Replica by replica.
    processes: Vec<PeerProcess>,
    /// Of a replica.
    stages: usize,
    answers: Receiver<Answer>,
    /// The number of the whole model's parameters.
    pub parameters: usize,
    pub version: String,
    /// Where stages find each other.
    _folder: TempDir,
}

/// A process and its answer; `None` if it has ended.
type Answer = (usize, Option<String>);

struct PeerProcess {
    child: Child,
    input: Option<ChildStdin>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PeerHello {
    Ready { parameters: usize, version: String },
    Missing { missing: String },
}

#[derive(Clone, Debug)]
pub struct PeerTask<'a> {
    pub python: &'a str,
    pub shape: ModelShape,
    /// Samples in a mini-batch.
    pub batch: usize,
    pub setup: PeerSetup,
    /// Micro-batches of a mini-batch, of equal size.
    pub micro_batches: usize,
    /// AdamW's learning rate; `None` for no update.
    pub rate: Option<f64>,
    /// Whether each step has another mini-batch.
    pub vary: bool,
    /// Where the weights are written before the first step.
    pub save: Option<PathBuf>,
    /// Whether images have their channels last in memory.
    pub channels_last: bool,
    /// Whether it computes in double precision.
    pub double: bool,
    /// Whether stages run forward again before their backward pass, as far as that does not follow at
    /// once.
    pub recompute: bool,
}

/// The devices of PyTorch.
#[derive(Clone, Debug)]
pub enum PeerSetup {
    /// The CPU, in one process.
    OneDevice {
        /// PyTorch's threads.
        threads: usize,
    },
    Gpu {
        /// PyTorch's name for it.
        device: String,
        /// f32, or the type that `autocast` computes in.
        precision: Precision,
        /// Whether the model goes through `torch.compile`.
        compiled: bool,
    },
    /// A process of one thread for each stage of each replica: stages by `torch.distributed.pipelining`,
    /// replicas by `DistributedDataParallel`.
    Pipeline {
        /// The layers of each stage.
        cut: Vec<usize>,
        /// 1F1B or GPipe.
        schedule: Rule,
        replicas: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct PeerStep {
    /// Seconds, by the clock of the process that took longest.
    pub seconds: f64,
    /// The loss, of the last stage: the mean over replicas.
    pub loss: f64,
}

impl<'a> PeerTask<'a> {
    /// Forward and backward of a mini-batch in one piece.
    pub fn new(python: &'a str, shape: ModelShape, batch: usize, setup: PeerSetup) -> Self {
        Self {
            python,
            shape,
            batch,
            setup,
            micro_batches: 1,
            rate: None,
            vary: false,
            save: None,
            channels_last: shape.is_amoebanet(),
            double: false,
            recompute: false,
        }
    }
}

impl Peer {
    /// Starts the processes and waits until they have made the model, and, if steps do not vary, run
    /// a first one. Where the Python or its PyTorch is not enough, the error says what to do.
    pub fn start(task: &PeerTask<'_>) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("store");
        let (answer, answers) = channel();
        let mut peer = Self {
            processes: Vec::new(),
            stages: 1,
            answers,
            parameters: 0,
            version: String::new(),
            _folder: folder,
        };
        let mut replicas = 1;
        if let PeerSetup::Pipeline {
            cut, replicas: r, ..
        } = &task.setup
        {
            (peer.stages, replicas) = (cut.len(), *r);
        }
        for index in 0..replicas * peer.stages {
            let mut flags = flags(task);
            if let PeerSetup::Pipeline { .. } = &task.setup {
                let (replica, stage) = (index / peer.stages, index % peer.stages);
                let place = format!("--stage {stage} --replica {replica} --store");
                flags.extend(place.split(' ').map(str::to_owned));
                flags.push(store.display().to_string());
            }
            let process = PeerProcess::start(task.python, flags, index, answer.clone())?;
            peer.processes.push(process);
        }
        drop(answer);
        for _ in 0..peer.processes.len() {
            let (_, hello) = peer.answer()?;
            (peer.parameters, peer.version) = understood(task.python, &hello)?;
        }
        Ok(peer)
    }

    /// Fails if PyTorch's model has another number of parameters.
    pub fn check(self, model: &dyn BenchModel) -> Result<Self, Failure> {
        let (ours, theirs) = (model.parameters()?, self.parameters);
        if ours != theirs {
            let name = model.name();
            return Err(format!("{name}: {ours} parameters here, {theirs} in PyTorch").into());
        }
        Ok(self)
    }

    /// Runs steps for at least `minimum`. Returns the mean time of one, by the processes' clocks.
    pub fn turn(&mut self, minimum: Duration) -> Result<TurnCost, Failure> {
        let (mut seconds, mut steps) = (0.0, 0);
        while steps == 0 || seconds < minimum.as_secs_f64() {
            seconds += self.step()?.seconds;
            steps += 1;
        }
        thread::sleep(SETTLE);
        Ok(TurnCost {
            seconds: seconds / f64::from(steps),
            processor: f64::NAN, // of another process
        })
    }

    pub fn step(&mut self) -> Result<PeerStep, Failure> {
        for process in &mut self.processes {
            let input = (process.input.as_mut()).ok_or("PyTorch's process has no input")?;
            // An error means that it has ended, which `answer` reports.
            let _ = input.write_all(b"\n").and_then(|()| input.flush());
        }
        let (mut seconds, mut losses) = (0.0_f64, Vec::new());
        for _ in 0..self.processes.len() {
            let (index, answer) = self.answer()?;
            let mut numbers = answer.split_whitespace().map(str::parse::<f64>);
            let (Some(Ok(own)), Some(Ok(loss))) = (numbers.next(), numbers.next()) else {
                return Err(format!("PyTorch's process answered {answer:?}").into());
            };
            seconds = seconds.max(own);
            if index % self.stages + 1 == self.stages {
                losses.push(loss);
            }
        }
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        Ok(PeerStep { seconds, loss })
    }

    fn answer(&self) -> Result<(usize, String), Failure> {
        match self.answers.recv_timeout(LIMIT) {
            Ok((index, Some(line))) => Ok((index, line)),
            Ok((index, None)) => Err(self.ended(index)),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended(0)),
            Err(RecvTimeoutError::Timeout) => {
                let minutes = LIMIT.as_secs() / 60;
                Err(format!("PyTorch did not answer for {minutes} minutes").into())
            }
        }
    }

    fn ended(&self, index: usize) -> Failure {
        let (replica, stage) = (index / self.stages, index % self.stages);
        let which = match (self.processes.len(), self.stages) {
            (1, _) => "process".to_owned(),
            (all, stages) if all == stages => format!("stage {stage}"),
            (_, 1) => format!("replica {replica}"),
            _ => format!("stage {stage} of replica {replica}"),
        };
        format!("PyTorch's {which} has ended; its error is above").into()
    }
}

impl Drop for Peer {
    /// Processes that wait for one that has ended would not read the end of their input.
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

impl PeerProcess {
    fn start(
        python: &str,
        flags: Vec<String>,
        index: usize,
        answers: Sender<Answer>,
    ) -> Result<Self, Failure> {
        let mut child = Command::new(python)
            .arg("-B") // writes no compiled files into the sources
            .arg(SCRIPT)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("`{python}` cannot be run ({error}): {ADVICE}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        thread::spawn(move || output.map(|output| listen(index, output, &answers)));
        Ok(Self { child, input })
    }
}

/// Passes on the lines of a process, and then that it has ended.
fn listen(index: usize, output: ChildStdout, answers: &Sender<Answer>) {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    for line in lines.map(Some).chain([None]) {
        if answers.send((index, line)).is_err() {
            return;
        }
    }
}

fn understood(python: &str, hello: &str) -> Result<(usize, String), Failure> {
    match serde_json::from_str(hello) {
        Ok(PeerHello::Ready {
            parameters,
            version,
        }) => Ok((parameters, version)),
        Ok(PeerHello::Missing { missing }) => {
            let message = format!("`{python}` has no PyTorch that can do this ({missing})");
            Err(format!("{message}: {ADVICE}").into())
        }
        Err(_) => Err(format!("`{python}` failed; its error is above ({hello:?})").into()),
    }
}

fn flags(task: &PeerTask<'_>) -> Vec<String> {
    let sizes = match task.shape {
        ModelShape::Amoebanet {
            layers,
            filters,
            side,
            large,
        } => {
            let stride = if large { 2 } else { 1 };
            let sizes = format!("--layers {layers} --filters {filters} --side {side}");
            format!("--model amoebanet {sizes} --stride {stride}")
        }
        ModelShape::Transformer {
            layers,
            d,
            heads,
            length,
        } => {
            let sizes = format!("--layers {layers} --d {d} --heads {heads} --length {length}");
            format!("--model transformer {sizes}")
        }
    };
    let (batch, micro_batches) = (task.batch, task.micro_batches);
    let run = format!("--classes {CLASSES} --batch {batch} --micro-batches {micro_batches}");
    let setup = match &task.setup {
        PeerSetup::OneDevice { threads } => format!("--threads {threads}"),
        PeerSetup::Gpu {
            device,
            precision,
            compiled,
        } => {
            let compiled = if *compiled { " --compile" } else { "" };
            format!("--device {device} --precision {precision}{compiled}")
        }
        PeerSetup::Pipeline {
            cut,
            schedule,
            replicas,
        } => {
            let cut: Vec<_> = cut.iter().map(usize::to_string).collect();
            let (cut, schedule) = (cut.join(" "), schedule.name());
            format!("--cut {cut} --schedule {schedule} --replicas {replicas}")
        }
    };
    let words = [sizes, run, setup].join(" ");
    let mut flags: Vec<_> = words.split(' ').map(str::to_owned).collect();
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
        ("--recompute", task.recompute),
    ];
    let switches = switches.iter().filter(|(_, on)| *on);
    flags.extend(switches.map(|(name, _)| (*name).to_owned()));
    flags
}
