//! A configuration in its own process, which works when it is asked to.
//!
//! Configurations that take turns within one process fragment its heap, and the later ones are
//! slower for it. So each has a process; those that are not asked are idle.

use std::{env, io, process, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Failure,
    arguments::Arguments,
    bench_model::BenchModel,
    copies::LoopCopies,
    job,
    line_process::LineProcess,
    measure::{Turn, TurnCost, TurnCosts, compute_alone, repeat, take_turns},
    models::model,
    piped::{PipedLoop, PipedSettings},
    products::Products,
    ranks,
    recipe::ModelShape,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ContenderTask {
    shape: ModelShape,
    /// Samples of a micro-batch.
    samples: usize,
    work: ContenderWork,
}

/// How a contender trains its model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ContenderWork {
    Piped {
        plan: PipedSettings,
        /// Whether parameters are updated.
        optimizer: bool,
    },
    Plain {
        micro_batches: usize,
        /// Whether parameters are updated.
        optimizer: bool,
    },
    Copies {
        count: usize,
        micro_batches: usize,
    },
    /// Matrix products of the model alone, of a micro-batch in each thread.
    Products {
        threads: usize,
    },
}

impl ContenderWork {
    /// Forward and backward through a pipeline.
    pub fn passes(plan: &PipedSettings) -> Self {
        let (plan, optimizer) = (plan.clone(), false);
        Self::Piped { plan, optimizer }
    }

    /// Forward, backward and update through a pipeline.
    pub fn training(plan: &PipedSettings) -> Self {
        let (plan, optimizer) = (plan.clone(), true);
        Self::Piped { plan, optimizer }
    }
}

/// Starts this program again, with the same flags, as a contender that takes turns.
pub fn contend(model: &dyn BenchModel, work: ContenderWork) -> Result<Turn<'static>, Failure> {
    let task = ContenderTask {
        shape: model.shape(),
        samples: model.samples(),
        work,
    };
    let processes = match &task.work {
        ContenderWork::Piped { plan, .. } => plan.launched(),
        _ => 1,
    };
    let mut command = job::command(processes)?;
    let command = command.args(env::args_os().skip(1)).arg("--contender");
    let mut contender = LineProcess::start(command.arg(serde_json::to_string(&task)?))?;
    Ok(Box::new(move || {
        let answer = contender.ask()?;
        let mut numbers = answer.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(seconds)), Some(Ok(processor))) => Ok(TurnCost { seconds, processor }),
            _ => Err("a contender failed; its error is above".into()),
        }
    }))
}

/// Starts a contender for each work and lets them take turns.
pub fn race(
    model: &dyn BenchModel,
    works: impl IntoIterator<Item = ContenderWork>,
    rounds: usize,
) -> Result<Vec<TurnCosts>, Failure> {
    let turns = works.into_iter().map(|work| contend(model, work));
    take_turns(&mut turns.collect::<Result<Vec<_>, _>>()?, rounds)
}

/// Works as a contender if the flags say so, and then ends the process: a turn for each line of
/// input. Otherwise lets the calling thread compute alone.
pub fn serve_or_compute_alone(arguments: &Arguments) -> Result<(), Failure> {
    compute_alone()?;
    if let Some(task) = &arguments.contender {
        serve(serde_json::from_str(task)?, arguments.turn())?;
        process::exit(0);
    }
    Ok(())
}

fn serve(task: ContenderTask, minimum: Duration) -> Result<(), Failure> {
    let model = model(task.shape, task.samples);
    let mut turn = task.work.prepare(&*model, minimum)?;
    for line in io::stdin().lines() {
        line?;
        let TurnCost { seconds, processor } = turn()?;
        println!("{seconds} {processor}");
    }
    Ok(())
}

impl ContenderWork {
    /// The turns of this work, in this process.
    pub fn prepare(
        &self,
        model: &dyn BenchModel,
        minimum: Duration,
    ) -> Result<Turn<'static>, Failure> {
        match self {
            Self::Piped { plan, optimizer } => {
                let mut piped = follow(ranks::piped(model, plan, *optimizer)?);
                Ok(Box::new(move || repeat(minimum, || piped.step().map(drop))))
            }
            &Self::Plain {
                micro_batches,
                optimizer,
            } => {
                let mut plain = model.plain(micro_batches)?;
                if optimizer {
                    plain.add_optimizer();
                }
                Ok(Box::new(move || repeat(minimum, || plain.step())))
            }
            &Self::Copies {
                count,
                micro_batches,
            } => {
                let mut copies = LoopCopies::start(model, count, micro_batches)?;
                Ok(Box::new(move || copies.turn(minimum)))
            }
            &Self::Products { threads } => {
                let products = Products::of(model.shape(), model.samples(), threads);
                Ok(Box::new(move || products.turn(minimum)))
            }
        }
    }
}

/// Makes the steps that the first process asks for, and ends this process; does nothing in the first one.
fn follow(mut piped: Box<dyn PipedLoop>) -> Box<dyn PipedLoop> {
    if stovepipe_comm_mpi::launched_rank().is_none_or(|rank| rank == 0) {
        return piped;
    }
    while piped.step().is_ok() {}
    // It leaves the job.
    drop(piped);
    process::exit(0);
}
