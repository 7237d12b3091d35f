//! The memory of a step, counted by the allocator.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use stovepipe::pipeline::Held;

use crate::{
    Failure, bench_model::BenchModel, learning::LoopKind, models::model, piped::PipedLoop,
    plain::PlainLoop, recipe::ModelShape,
};

/// What a child process measures.
#[derive(Serialize, Deserialize)]
struct MemoryTask {
    shape: ModelShape,
    samples: usize,
    kind: LoopKind,
}

pub struct AllocationCounter {
    /// Bytes that are allocated now.
    pub now: fn() -> usize,
    /// The peak of the bytes so far.
    pub peak: fn() -> usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeakMemory {
    pub parameters: usize,
    /// Allocated between mini-batches: parameters, statistics, the batch, buffers of threads.
    pub resting: usize,
    pub optimizer: usize,
    /// The peak of a mini-batch above `resting`, with its gradients.
    pub peak: usize,
    /// The peak of all bytes of a training with an optimizer.
    pub training: usize,
    /// Inputs + activations that each stage held by the engine's report, in micro-batches.
    pub held: String,
}

/// In a child process: prints what it measures.
pub fn show_memory(task: &str, counter: &AllocationCounter) -> Result<(), Failure> {
    let task: MemoryTask = serde_json::from_str(task)?;
    let peak = (task.kind).measure(&*model(task.shape, task.samples), counter)?;
    println!("{}", serde_json::to_string(&peak)?);
    Ok(())
}

impl LoopKind {
    /// Measures its memory in a child process, which is this program again and calls [`show_memory`].
    pub fn measure_in_child(&self, model: &dyn BenchModel) -> Result<PeakMemory, Failure> {
        let task = MemoryTask {
            shape: model.shape(),
            samples: model.samples(),
            kind: self.clone(),
        };
        let mut child = Command::new(std::env::current_exe()?);
        child.args(std::env::args_os().nth(1)); // the subcommand
        child.args(["--memory-of", &serde_json::to_string(&task)?]);
        let output = child.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err("the process that measures memory failed; its error is above".into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Measures its memory in this process, in which nothing large may have been allocated before.
    fn measure(
        &self,
        model: &dyn BenchModel,
        counter: &AllocationCounter,
    ) -> Result<PeakMemory, Failure> {
        let parameters = model.parameters()? * size_of::<f32>();
        match self {
            Self::Plain { micro_batches } => phases(
                counter,
                parameters,
                || model.plain(*micro_batches),
                |plain: &mut Box<dyn PlainLoop>| plain.step().map(|()| String::new()),
                |plain| plain.add_optimizer(),
            ),
            Self::Piped(plan) => phases(
                counter,
                parameters,
                || model.piped(plan),
                |piped: &mut Box<dyn PipedLoop>| Ok(describe(&piped.step()?.held)),
                |piped| piped.add_optimizer(),
            ),
        }
    }
}

fn describe(held: &[Held]) -> String {
    let stages = held.iter();
    let stages = stages.map(|held| format!("{}+{}", held.inputs, held.activations));
    stages.collect::<Vec<_>>().join("  ")
}

/// Makes a training, steps it twice, gives it an optimizer and steps it again.
fn phases<T>(
    counter: &AllocationCounter,
    parameters: usize,
    make: impl FnOnce() -> Result<T, Failure>,
    mut step: impl FnMut(&mut T) -> Result<String, Failure>,
    add_optimizer: impl FnOnce(&mut T),
) -> Result<PeakMemory, Failure> {
    let empty = (counter.now)();
    let mut training = make()?;
    // The first step also allocates what stays: lazy parameters, buffers of threads.
    step(&mut training)?;
    let resting = (counter.now)();
    let held = step(&mut training)?;
    let peak = (counter.peak)();
    add_optimizer(&mut training);
    step(&mut training)?;
    let optimizer = (counter.now)().saturating_sub(resting);
    step(&mut training)?; // all memory is needed when there are states
    Ok(PeakMemory {
        parameters,
        resting: resting - empty,
        optimizer,
        peak: peak - resting,
        training: (counter.peak)() - empty,
        held,
    })
}
