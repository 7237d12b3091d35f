//! One step, from the caller's side: gives each worker its actions and stages, and explains failures.
//! How workers run a step together is the crate `stovepipe-runtime`.

use std::{collections::HashMap, time::Instant};

use stovepipe_runtime::{Cause, Fault, JobContext, StepOptions};
use stovepipe_schedule::{Action, Schedule, Timeline};

use crate::{
    api::{
        control::Progress,
        error::{FailureCause, StageFailure, StepError, WorkerState},
    },
    engine::{
        core::Engine,
        panic::Panicked,
        record::{self, Recorder},
        stage::{ActionError, StageResult, StageStep, StageTask},
    },
    model::layer::Layer,
};

/// The results of all stages, in order, and what happened when.
pub(crate) struct StepResult<L: Layer> {
    pub(crate) stages: Vec<StageResult<L>>,
    pub(crate) timeline: Timeline,
}

/// Runs a schedule. There is one task per stage, in order. The caller holds the engine's turn.
pub(crate) fn run<L: Layer>(
    engine: &Engine,
    schedule: &Schedule,
    tasks: Vec<StageTask<L>>,
) -> Result<StepResult<L>, StepError> {
    let began = Instant::now();
    let mut tasks: HashMap<_, _> = tasks.into_iter().map(|task| (task.index, task)).collect();
    let mut recorders = Vec::new();
    let mut jobs = Vec::new();
    for actions in schedule.workers() {
        let recorder = Recorder::new(began);
        recorders.push(recorder.clone());
        let mut own = Vec::new();
        for action in actions {
            own.extend(tasks.remove(&action.stage));
        }
        let actions = actions.clone();
        jobs.push(move |context: &mut JobContext<'_, Action>| {
            run_actions(context, &actions, own, &recorder)
        });
    }
    let options = StepOptions {
        stop: &engine.stop,
        stall_timeout: engine.stall_timeout,
    };
    let total = schedule.workers().iter().map(Vec::len).sum();
    let mut done = 0;
    let on_action = |worker, action| {
        done += 1;
        engine.report(&Progress {
            worker,
            action,
            done,
            total,
        })
    };
    let to_error = |fault| explain(fault, engine, schedule, &recorders);
    let results = stovepipe_runtime::step(&engine.workers, jobs, options, on_action, to_error);
    if let Err(error) = &results {
        let has_stalled = matches!(error, StepError::Stalled { .. });
        (engine.transfers).settle(engine.stall_timeout, has_stalled);
    }
    let mut stages: Vec<_> = results?.into_iter().flatten().collect();
    stages.sort_by_key(|(index, _)| *index);
    Ok(StepResult {
        stages: stages.into_iter().map(|(_, result)| result).collect(),
        timeline: record::timeline(&recorders),
    })
}

/// Runs a worker's actions.
fn run_actions<L: Layer>(
    context: &mut JobContext<'_, Action>,
    actions: &[Action],
    tasks: Vec<StageTask<L>>,
    recorder: &Recorder,
) -> Result<Vec<(usize, StageResult<L>)>, ActionError> {
    let mut stages: HashMap<_, _> = tasks
        .into_iter()
        .map(|task| (task.index, StageStep::new(task, recorder.clone())))
        .collect();
    for &action in actions {
        context.act(action, |cancel| {
            let Some(stage) = stages.get_mut(&action.stage) else {
                let cause = FailureCause::Internal("the worker does not have the stage");
                return Err(ActionError::Failed(cause));
            };
            stage.run(action, cancel)
        })?;
    }
    recorder.done();
    Ok((stages.into_iter())
        .map(|(index, stage)| (index, stage.finish()))
        .collect())
}

/// Turns a fault into an error that says where it happened.
fn explain(
    fault: Fault<Action, FailureCause>,
    engine: &Engine,
    schedule: &Schedule,
    recorders: &[Recorder],
) -> StepError {
    let flight = record::flight_record(recorders, &engine.transfers);
    let (worker, action, cause) = match fault {
        Fault::Failed {
            worker,
            action,
            cause,
        } => (worker, action, cause),
        Fault::Stalled => {
            let limit = engine.stall_timeout.unwrap_or_default();
            return StepError::Stalled { limit, flight };
        }
        Fault::Stopped => return StepError::Stopped,
        Fault::Lost => return StepError::Lost,
    };
    // Without an action, the worker failed while it prepared the first one.
    let action = action.unwrap_or(schedule.workers()[worker][0]);
    let layer = match recorders[worker].state() {
        WorkerState::Running { layer, .. } => layer,
        _ => None,
    };
    StepError::Failed(Box::new(StageFailure {
        stage: action.stage,
        layer,
        action,
        device: engine.stages[action.stage].device_name.clone(),
        cause: match cause {
            Cause::Error(cause) => cause,
            Cause::Panicked(panic) => Panicked::new(&*panic).into(),
        },
        flight,
    }))
}
