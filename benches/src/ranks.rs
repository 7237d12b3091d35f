//! Processes that are threads of this one, to measure over links of a given speed.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use stovepipe_comm::{Communicator, local, local_throttled};

use crate::{
    Failure,
    bench_model::BenchModel,
    measure::compute_alone,
    piped::{Network, PipedLoop, PipedSettings, PipedStep},
};

/// The first rank of a pipeline. The others make the same steps, each in a thread.
pub struct ThreadRanks {
    /// `None` at the end: the others then end, too.
    first: Option<Box<dyn PipedLoop>>,
    others: Vec<JoinHandle<()>>,
}

/// The pipeline, whose other processes follow this one.
pub fn piped(
    model: &dyn BenchModel,
    plan: &PipedSettings,
    optimizer: bool,
) -> Result<Box<dyn PipedLoop>, Failure> {
    let Network::Threads { bytes_per_second } = plan.network else {
        let mut piped = model.piped(plan)?;
        if optimizer {
            piped.add_optimizer();
        }
        return Ok(piped);
    };
    let mut ranks = match bytes_per_second {
        Some(speed) => local_throttled(plan.processes, speed, None)?,
        None => local(plan.processes, None)?,
    };
    let others = ranks.split_off(1).into_iter().map(|communicator| {
        let (model, plan) = (model.with_samples(model.samples()), plan.clone());
        thread::spawn(move || {
            if let Err(error) = follow(&*model, &plan, optimizer, communicator) {
                eprintln!("a rank failed: {error}"); // the first rank's calls fail
            }
        })
    });
    let others = others.collect();
    let first = ranks.pop().ok_or("there is no rank")?;
    let mut first = model.connected(plan, Arc::new(first))?;
    if optimizer {
        first.add_optimizer();
    }
    let first = Some(first);
    Ok(Box::new(ThreadRanks { first, others }))
}

/// Makes the steps that the first rank makes.
fn follow(
    model: &dyn BenchModel,
    plan: &PipedSettings,
    optimizer: bool,
    communicator: Communicator,
) -> Result<(), Failure> {
    compute_alone()?;
    let mut piped = model.connected(plan, Arc::new(communicator))?;
    if optimizer {
        piped.add_optimizer();
    }
    while piped.step().is_ok() {}
    Ok(())
}

impl PipedLoop for ThreadRanks {
    fn step(&mut self) -> Result<PipedStep, Failure> {
        self.first.as_mut().ok_or("the ranks have ended")?.step()
    }

    fn add_optimizer(&mut self) {
        // All ranks have theirs from the start.
    }
}

impl Drop for ThreadRanks {
    fn drop(&mut self) {
        self.first = None;
        for other in self.others.drain(..) {
            let _ = other.join(); // it has said how it failed
        }
    }
}
