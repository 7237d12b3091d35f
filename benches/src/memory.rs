//! How much memory a step takes, counted by the allocator.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stovepipe::pipeline::Held;

use crate::{
    Failure,
    arguments::Arguments,
    measured::Measured,
    piped::{PipedLoop, PipelineSettings},
    plain::PlainLoop,
};

/// The counting allocator of the program.
pub struct Counter {
    /// Bytes that are allocated now.
    pub now: fn() -> usize,
    /// The most there ever were.
    pub most: fn() -> usize,
}

/// What the memory is measured of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Subject {
    /// A plain Burn loop that accumulates gradients.
    PlainLoop {
        /// Over so many micro-batches.
        micro_batches: usize,
    },
    /// A pipeline.
    Pipeline(PipelineSettings),
}

/// Bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peak {
    /// Of the parameters.
    pub parameters: usize,
    /// Allocated between mini-batches: parameters, statistics, the batch, buffers of threads.
    pub resting: usize,
    /// That the optimizer keeps.
    pub optimizer: usize,
    /// The most that a mini-batch had allocated above that, gradients among it.
    pub peak: usize,
    /// What the engine says that each stage held: inputs + activations, in micro-batches.
    pub held: String,
}

impl Subject {
    /// Stages, schedule and recompute mode, for a table.
    #[must_use]
    pub fn describe(&self) -> [Value; 3] {
        match self {
            Self::PlainLoop { .. } => [json!(1), json!("plain loop"), Value::Null],
            Self::Pipeline(plan) => [
                json!(plan.cut.len()),
                json!(plan.schedule_name()),
                json!(plan.recompute.to_string()),
            ],
        }
    }

    /// Measures in a child process, which is this program again.
    ///
    /// # Errors
    ///
    /// If the child fails.
    pub fn measure_in_child(&self, model: &str, arguments: &Arguments) -> Result<Peak, Failure> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(std::env::args_os().nth(1)); // the subcommand
        child.args(["--model", model]);
        child.args(["--memory-of", &serde_json::to_string(self)?]);
        child.args(arguments.quick.then_some("--quick"));
        if let Some(samples) = arguments.samples {
            child.args(["--samples", &samples.to_string()]);
        }
        let output = child.stderr(Stdio::inherit()).output()?;
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout)?),
            false => Err("the process that measures memory failed".into()),
        }
    }

    /// Measures in this process, in which nothing large may have lived before.
    ///
    /// # Errors
    ///
    /// If a step fails.
    pub fn measure(&self, model: &dyn Measured, counter: &Counter) -> Result<Peak, Failure> {
        let parameters = model.parameters()? * size_of::<f32>();
        match self {
            Self::PlainLoop { micro_batches } => {
                let make = || model.plain(*micro_batches);
                let step = |plain: &mut Box<dyn PlainLoop>| plain.step().map(|()| String::new());
                phases(counter, parameters, make, step, |plain| {
                    plain.add_optimizer()
                })
            }
            Self::Pipeline(plan) => {
                let make = || model.piped(plan);
                let step = |piped: &mut Box<dyn PipedLoop>| Ok(describe(&piped.step()?.held));
                phases(counter, parameters, make, step, |piped| {
                    piped.add_optimizer()
                })
            }
        }
    }
}

fn describe(held: &[Held]) -> String {
    let stages = held.iter();
    let stages = stages.map(|held| format!("{}+{}", held.inputs, held.activations));
    stages.collect::<Vec<_>>().join("  ")
}

/// Makes something that trains, steps it twice, gives it an optimizer and steps it again.
fn phases<T>(
    counter: &Counter,
    parameters: usize,
    make: impl FnOnce() -> Result<T, Failure>,
    mut step: impl FnMut(&mut T) -> Result<String, Failure>,
    add_optimizer: impl FnOnce(&mut T),
) -> Result<Peak, Failure> {
    let empty = (counter.now)();
    let mut training = make()?;
    // The first step also makes what is made once: lazy parameters, buffers of threads.
    step(&mut training)?;
    let resting = (counter.now)();
    let held = step(&mut training)?;
    let most = (counter.most)();
    add_optimizer(&mut training);
    step(&mut training)?;
    Ok(Peak {
        parameters,
        resting: resting - empty,
        optimizer: (counter.now)().saturating_sub(resting),
        peak: most - resting,
        held,
    })
}
