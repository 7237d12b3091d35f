//! One step, from the caller's side: hands each worker its list of actions and the stages that they
//! are of, and says what went wrong where. How workers run a step together, and end it together, is
//! `stovepipe-runtime`.

use std::{collections::HashMap, time::Instant};

use stovepipe_runtime::{Cause, Fault, JobContext, StepOptions};
use stovepipe_schedule::{Action, Schedule, Timeline};

use crate::{
    api::{
        control::Progress,
        error::{StageFailure, StepError, WorkerState},
    },
    engine::{
        Engine, guard,
        record::{self, Recorder},
        stage::{Ended, Stage, StageResult, StageTask},
    },
    model::layer::Layer,
};

/// What all stages left behind, by stage, and what happened when.
pub(crate) struct Outcome<L: Layer> {
    pub(crate) stages: Vec<StageResult<L>>,
    pub(crate) timeline: Timeline,
}

/// Runs a schedule. `tasks` are those of all stages, by stage. The caller holds the engine's turn.
pub(crate) fn run<L: Layer>(
    engine: &Engine,
    schedule: &Schedule,
    tasks: Vec<StageTask<L>>,
) -> Result<Outcome<L>, StepError> {
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
            walk(context, &actions, own, &recorder)
        });
    }
    let terms = StepOptions {
        stop: &engine.stop,
        stall_timeout: engine.stall_timeout,
    };
    let total = schedule.workers().iter().map(Vec::len).sum();
    let mut done = 0;
    let tell = |worker, action| {
        done += 1;
        engine.tell(&Progress {
            worker,
            action,
            done,
            total,
        })
    };
    let explain = |fault| explain(fault, engine, schedule, &recorders);
    let of_workers = stovepipe_runtime::step(&engine.workers, jobs, terms, tell, explain);
    if let Err(error) = &of_workers {
        let has_stalled = matches!(error, StepError::Stalled { .. });
        (engine.transfers).settle(engine.stall_timeout, has_stalled);
    }
    let of_workers = of_workers?;
    let mut stages: Vec<_> = of_workers.into_iter().flatten().collect();
    stages.sort_by_key(|(index, _)| *index);
    Ok(Outcome {
        stages: stages.into_iter().map(|(_, result)| result).collect(),
        timeline: record::timeline(&recorders),
    })
}

/// A worker's part of a step.
fn walk<L: Layer>(
    context: &mut JobContext<'_, Action>,
    actions: &[Action],
    tasks: Vec<StageTask<L>>,
    recorder: &Recorder,
) -> Result<Vec<(usize, StageResult<L>)>, Ended> {
    let mut stages: HashMap<_, _> = tasks
        .into_iter()
        .map(|task| (task.index, Stage::new(task, recorder.clone())))
        .collect();
    for &action in actions {
        context.act(action, |cancel| {
            let Some(stage) = stages.get_mut(&action.stage) else {
                let cause = "the worker was not given the stage".to_owned();
                return Err(Ended::Failed(cause));
            };
            stage.run(action, cancel)
        })?;
    }
    recorder.done();
    Ok((stages.into_iter())
        .map(|(index, stage)| (index, stage.finish()))
        .collect())
}

/// Names the place of what went wrong.
fn explain(
    fault: Fault<Action, String>,
    engine: &Engine,
    schedule: &Schedule,
    recorders: &[Recorder],
) -> StepError {
    let flight = || record::flight_record(recorders, &engine.transfers);
    let (worker, action, cause) = match fault {
        Fault::Failed {
            worker,
            action,
            cause,
        } => (worker, action, cause),
        Fault::Stalled => {
            return StepError::Stalled {
                limit: engine.stall_timeout.unwrap_or_default(),
                flight: flight(),
            };
        }
        Fault::Stopped => return StepError::Stopped,
        Fault::Lost => return StepError::Lost,
    };
    // Before its first action, a worker prepares for it.
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
            Cause::Panicked(panic) => format!("panicked: {}", guard::panic_message(&*panic)),
        },
        flight: flight(),
    }))
}
