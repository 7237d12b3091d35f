//! One training in its own process, with every byte counted.

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use burn::tensor::{Device, Distribution, Int, Tensor};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{NamedDevice, device::is_out_of_memory},
    prelude::*,
    train::optimizer::StagedOptimizer,
};

use stovepipe_amoebanet::AmoebaLayer;

use super::case::FootprintCase;
use crate::{Failure, memory::AllocationCounter};

/// Any rate: it changes no memory.
const RATE: f64 = 1e-3;

/// A training for a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    pub case: FootprintCase,
    /// The layers of each stage.
    pub cut: Vec<usize>,
    /// The name of the device of all stages.
    pub device: String,
    /// Bytes that the process may allocate.
    pub budget: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MeasuredMemory {
    /// The network before the first step: parameters and running statistics.
    pub parameters: u64,
    /// The optimizer state after the first update.
    pub optimizer: u64,
    /// The gradients that a step returns.
    pub gradients: u64,
    /// The peak of a step above all of this: kept inputs, activations, and temporary values.
    pub activations: u64,
    /// Images and classes of the mini-batch.
    pub batch: u64,
    /// The rest between steps: buffers of threads.
    pub other: u64,
    /// The peak of the whole training.
    pub peak: u64,
    /// Seconds of a step with its update.
    pub seconds: f64,
}

impl Trial {
    /// Runs two steps with their updates. The second one needs all memory, since an optimizer has no
    /// state before its first update. Nothing large may have been allocated in this process before.
    pub fn run(&self, counter: &AllocationCounter) -> Result<MeasuredMemory, Failure> {
        let now = || (counter.now)() as u64;
        let device = self.device.parse::<NamedDevice>()?.device;
        let empty = now();
        let mut pipeline = self.pipeline(&device)?;
        let parameters = now() - empty;
        let before_batch = now();
        let images = self.case.images;
        let shape = [images.count, 3, images.side, images.side];
        let input = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        let classes = Tensor::<1, Int>::arange(0..images.count as i64, &device);
        let batch = now() - before_batch;

        let settings = self.case.settings();
        let mut optimizer = StagedOptimizer::new(&settings, self.cut.len());
        let mut update = |pipeline: &mut _, gradients| {
            let before = now();
            optimizer.step(RATE, pipeline, gradients, Instant::now())?;
            Ok::<_, Failure>([before, now()])
        };
        let step = |pipeline: &Pipeline<_>| {
            let step = pipeline.train_step((input.clone(), classes.clone()), &CrossEntropy::new());
            step.map(|step| step.gradients)
        };
        let gradients = step(&pipeline)?;
        let first = update(&mut pipeline, gradients)?;
        let began = Instant::now();
        let gradients = step(&pipeline)?;
        let peak = (counter.peak)() as u64;
        let second = update(&mut pipeline, gradients)?;
        let seconds = began.elapsed().as_secs_f64();

        // An update frees the gradients; the first one also allocates the optimizer's state.
        let gradients = second[0].saturating_sub(second[1]);
        let optimizer = (first[1] + gradients).saturating_sub(first[0]);
        let resting = first[1];
        Ok(MeasuredMemory {
            parameters,
            optimizer,
            gradients,
            activations: peak.saturating_sub(resting + gradients),
            batch,
            other: resting.saturating_sub(empty + parameters + batch + optimizer),
            peak: (counter.peak)() as u64,
            seconds,
        })
    }

    fn pipeline(&self, device: &Device) -> Result<Pipeline<AmoebaLayer>, Failure> {
        let (network, strategy) = (self.case.network, self.case.strategy);
        let builder = Pipeline::builder(network.init(device)?)
            .devices(vec![device.clone(); strategy.devices()])
            .balance(Balance::Layers(self.cut.clone()))
            .schedule(GPipe)
            .micro_batches(self.case.micro_batches())
            .recompute(strategy.recompute());
        Ok(builder.build()?)
    }

    /// Runs in a child process, which is this program again. `None` if memory is not enough.
    pub fn in_child(&self) -> Result<Option<MeasuredMemory>, Failure> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(std::env::args_os().nth(1)); // the subcommand
        child.args(["--trial", &serde_json::to_string(self)?]);
        let output = child.stdin(Stdio::null()).output()?;
        if output.status.success() {
            let items: MeasuredMemory = serde_json::from_slice(&output.stdout)?;
            return Ok((items.peak <= self.budget).then_some(items));
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        if is_about_memory(&errors) {
            return Ok(None);
        }
        Err(format!("training {} failed: {errors}", self.case.network).into())
    }
}

/// Whether a process failed for lack of memory, by the errors of Rust's allocator and of devices.
fn is_about_memory(errors: &str) -> bool {
    errors.contains("memory allocation of") || is_out_of_memory(errors)
}

#[cfg(test)]
mod tests {
    use super::is_about_memory;

    #[test]
    fn only_a_lack_of_memory_counts_as_one() {
        assert!(is_about_memory("memory allocation of 1048576 bytes failed"));
        let on_device = "out of device memory allocating 1048576 bytes";
        assert!(is_about_memory(on_device));
        assert!(!is_about_memory("stage 0, layer 3: the loss is not finite"));
    }
}
