//! PyTorch beside us: a child process that runs a step whenever it is told to, so that both are
//! measured in the same minutes.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use serde::Deserialize;

use crate::{Failure, measure::Cost, models::Shape};

/// The peer's script.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/step.py");

/// How long OpenMP's threads are given to fall asleep after a step: they spin for a while, and
/// would take the processor from whoever has the next turn.
const SETTLE: Duration = Duration::from_millis(100);

/// A step in PyTorch, forward and backward.
pub struct Peer {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The number of the model's parameters.
    pub parameters: usize,
    /// PyTorch's version.
    pub version: String,
}

/// What the child says first.
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
    /// PyTorch's threads.
    pub threads: usize,
    /// Whether maps lie in memory with channels last.
    pub channels_last: bool,
}

impl Peer {
    /// Starts the child and waits until it has made its model and run a first step.
    ///
    /// # Errors
    ///
    /// If there is no such Python, or no PyTorch in it; the error says what to do.
    pub fn start(task: &Task<'_>) -> Result<Self, Failure> {
        let Task { python, .. } = task;
        let advice =
            "install PyTorch (pip install torch), or name a Python that has it: --python PATH";
        let mut child = Command::new(python)
            .arg("-B") // leaves no compiled files in the sources
            .arg(SCRIPT)
            .args(flags(task))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("`{python}` cannot be run ({error}): {advice}"))?;
        let orders = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().ok_or("the peer has no output")?);
        let mut hello = String::new();
        answers.read_line(&mut hello)?;
        match serde_json::from_str(&hello) {
            Ok(Hello::Ready {
                parameters,
                version,
            }) => Ok(Self {
                child,
                orders,
                answers,
                parameters,
                version,
            }),
            Ok(Hello::Missing { missing }) => {
                Err(format!("`{python}` has no PyTorch ({missing}): {advice}").into())
            }
            Err(_) => Err(format!("`{python}` failed; it says why above ({hello:?})").into()),
        }
    }

    /// Runs steps for at least `least`. Returns the mean cost of one, by the child's clock.
    ///
    /// # Errors
    ///
    /// If the child is gone.
    pub fn turn(&mut self, least: Duration) -> Result<Cost, Failure> {
        let (mut seconds, mut steps) = (0.0, 0);
        while steps == 0 || seconds < least.as_secs_f64() {
            seconds += self.step()?;
            steps += 1;
        }
        thread::sleep(SETTLE);
        Ok(Cost {
            seconds: seconds / f64::from(steps),
            processor: f64::NAN, // another process's
        })
    }

    fn step(&mut self) -> Result<f64, Failure> {
        let orders = self.orders.as_mut().ok_or("the peer has no input")?;
        orders.write_all(b"\n")?;
        orders.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let seconds = answer.trim().parse();
        Ok(seconds.map_err(|_| format!("the peer ended; it says why above ({answer:?})"))?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.orders = None; // the child reads the end of its input, and ends
        let _ = self.child.wait();
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
        threads,
        ..
    } = task;
    let run = format!("--classes {classes} --batch {batch} --threads {threads}");
    let layout = task.channels_last.then_some("--channels-last");
    (sizes.split(' ').chain(run.split(' ')).chain(layout))
        .map(str::to_owned)
        .collect()
}
