//! A configuration in a process of its own, which works when it is told to.
//!
//! Within one process, configurations that take turns leave each other a heap full of holes, and the
//! later ones pay for it. So each has a process, and idle ones have nothing to say.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    Failure,
    arguments::Arguments,
    copies::Copies,
    measure::{Cost, Turn, repeat},
    measured::Measured,
    models::model,
    piped::PipelineSettings,
    recipe::Shape,
    threads::compute_alone,
};

/// What a contender is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    /// The model's sizes.
    shape: Shape,
    /// Samples of a micro-batch.
    samples: usize,
    /// What is done with it.
    work: Work,
}

/// What is done with a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    /// It is trained through a pipeline.
    Piped {
        /// How.
        plan: PipelineSettings,
        /// Whether parameters are updated.
        optimizer: bool,
    },
    /// It is trained by a plain loop.
    Plain {
        /// Micro-batches.
        micro_batches: usize,
        /// Whether parameters are updated.
        optimizer: bool,
    },
    /// It is trained by several plain loops at once.
    Copies {
        /// How many.
        count: usize,
        /// Micro-batches of each.
        micro_batches: usize,
    },
}

/// The process of a contender.
struct Contender {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Starts this program once more, with the same flags, as a contender that takes turns.
///
/// # Errors
///
/// If that fails.
pub fn contend(model: &dyn Measured, work: Work) -> Result<Turn<'static>, Failure> {
    let task = Task {
        shape: model.shape(),
        samples: model.samples(),
        work,
    };
    let mut child = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .arg("--contender")
        .arg(serde_json::to_string(&task)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let orders = child.stdin.take();
    let answers = child.stdout.take().ok_or("a contender has no output")?;
    let mut contender = Contender {
        child,
        orders,
        answers: BufReader::new(answers),
    };
    Ok(Box::new(move || contender.turn()))
}

impl Contender {
    fn turn(&mut self) -> Result<Cost, Failure> {
        let orders = self.orders.as_mut().ok_or("a contender has no input")?;
        writeln!(orders)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let mut numbers = answer.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(seconds)), Some(Ok(processor))) => Ok(Cost { seconds, processor }),
            _ => Err("a contender failed; what it said is above".into()),
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.orders = None; // at the end of its input, the child ends
        let _ = self.child.wait();
    }
}

/// Works as a contender: a turn for each line of input.
///
/// # Errors
///
/// If the task cannot be read, or the work fails.
pub fn serve(arguments: &Arguments, task: &str) -> Result<(), Failure> {
    let task: Task = serde_json::from_str(task)?;
    let _pool = compute_alone()?;
    let model = model(task.shape, task.samples);
    let mut turn = task.work.prepare(&*model, arguments.turn())?;
    for line in io::stdin().lines() {
        line?;
        let Cost { seconds, processor } = turn()?;
        println!("{seconds} {processor}");
    }
    Ok(())
}

impl Work {
    fn prepare(&self, model: &dyn Measured, least: Duration) -> Result<Turn<'static>, Failure> {
        match self {
            Self::Piped { plan, optimizer } => {
                let mut piped = model.piped(plan)?;
                if *optimizer {
                    piped.add_optimizer();
                }
                Ok(Box::new(move || repeat(least, || piped.step().map(|_| ()))))
            }
            &Self::Plain {
                micro_batches,
                optimizer,
            } => {
                let mut plain = model.plain(micro_batches)?;
                if optimizer {
                    plain.add_optimizer();
                }
                Ok(Box::new(move || repeat(least, || plain.step())))
            }
            &Self::Copies {
                count,
                micro_batches,
            } => {
                let mut copies = Copies::start(model, count, micro_batches)?;
                Ok(Box::new(move || copies.turn(least)))
            }
        }
    }
}
