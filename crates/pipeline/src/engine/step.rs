//! One step, from the caller's side: gives each worker its actions and stages, and explains failures.
//! How workers run a step together is the crate `stovepipe-runtime`.

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use stovepipe_runtime::{Cause, Fault, JobContext, StepOptions};
use stovepipe_schedule::{Action, Timeline, VersionUse};

use crate::{
    api::{
        batch::Progress,
        error::{BoxedError, FailureCause, StageFailure, StepError, WorkerState},
    },
    engine::{
        core::Engine,
        panic::Panicked,
        pass_sums::{self, PassSum, PassSums},
        record::{self, Recorder},
        report::{Reports, StageReport},
        schedules::StepSchedule,
        stage::{StageResult, StageStep, StageTask},
        worker::ActionError,
    },
    measure::device::NamedDevice,
    model::layer::Layer,
};

/// How long a process that only waits gives the others to say what hangs there, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(10);

/// The results of a run.
pub(crate) struct StepResult<L: Layer> {
    /// Of all stages, in order.
    pub(crate) reports: Vec<StageReport>,
    /// Of this process's stages, in order.
    pub(crate) stages: Vec<StageResult<L>>,
    pub(crate) timeline: Timeline,
    pub(crate) passes: Vec<PassSum>,
}

/// Runs the actions of all workers in all processes. There is one task per seat of this one; without them,
/// the others have to know. `on_action` is called after each action here. The caller holds the engine's turn.
pub(crate) fn run<L: Layer>(
    engine: &Engine,
    schedule: &StepSchedule,
    tasks: Result<Vec<StageTask<L>>, StepError>,
    on_action: impl FnMut(Action) -> Result<(), StepError>,
) -> Result<StepResult<L>, StepError> {
    let number = engine.processes.begin();
    let ran = tasks.and_then(|tasks| run_own(engine, schedule, tasks, (number, on_action)));
    let ran = ran.map_err(|error| of_who_hangs(error, engine, number));
    let (stages, reports) = match ran {
        Ok((stages, reports)) => (stages, Ok(reports)),
        Err(error) => (Vec::new(), Err(error)),
    };
    let mut reports = engine.processes.end(reports)?;
    reports.stages.sort_by_key(|(stage, _)| *stage);
    let mut workers = vec![Vec::new(); schedule.actions.len()];
    for (worker, spans) in reports.spans {
        workers[worker] = spans;
    }
    Ok(StepResult {
        reports: reports
            .stages
            .into_iter()
            .map(|(_, report)| report)
            .collect(),
        stages,
        timeline: Timeline {
            workers,
            host_time: !engine.devices.iter().all(NamedDevice::is_cpu),
        },
        passes: pass_sums::in_order(reports.passes),
    })
}

/// If a step has stalled while this process only waited for others, one of them knows which layer hangs:
/// its error, if it comes soon.
fn of_who_hangs(error: StepError, engine: &Engine, number: u64) -> StepError {
    let StepError::Stalled { flight, .. } = &error else {
        return error;
    };
    let is_running =
        |worker: usize| matches!(flight.workers[worker].state, WorkerState::Running { .. });
    let hangs_here = engine.processes.own_workers().any(is_running);
    if !engine.processes.are_several() || hangs_here {
        return error;
    }
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(reason) = engine.cancel.take_reason(number) {
            return StepError::Cancelled(reason);
        }
        thread::sleep(INTERVAL);
    }
    error
}

/// Runs this process's share of the actions.
fn run_own<L: Layer>(
    engine: &Engine,
    schedule: &StepSchedule,
    tasks: Vec<StageTask<L>>,
    (number, mut on_action): (u64, impl FnMut(Action) -> Result<(), StepError>),
) -> Result<(Vec<StageResult<L>>, Reports), StepError> {
    let (began, actions) = (Instant::now(), &schedule.actions);
    // All stages of a step share them.
    let training = tasks.iter().find_map(|task| task.training.clone());
    let mut tasks_of_workers = HashMap::<_, Vec<_>>::new();
    for mut task in tasks {
        task.run = number;
        let own = tasks_of_workers.entry(task.seat.worker).or_default();
        own.push(task);
    }
    let recorders: Vec<_> = actions.iter().map(|_| Recorder::new(began)).collect();
    let own: Vec<_> = engine.processes.own_workers().collect();
    let mut jobs = Vec::new();
    for &worker in &own {
        let recorder = recorders[worker].clone();
        let actions = schedule.with_versions(worker);
        let tasks = tasks_of_workers.remove(&worker).unwrap_or_default();
        jobs.push(move |context: &mut JobContext<'_, Action>| {
            run_actions(context, &actions, tasks, &recorder)
        });
    }
    let options = StepOptions {
        stop: &engine.stop,
        cancel: &engine.cancel,
        number,
        stall_timeout: engine.stall_timeout,
        // A window is fed when its passes end.
        late_reports: engine.progress.is_none() && !engine.is_asynchronous,
    };
    let total = own.iter().map(|&worker| actions[worker].len()).sum();
    let mut done = 0;
    let on_action = |worker: usize, action| {
        done += 1;
        engine.report(&Progress {
            worker: own[worker],
            action,
            done,
            total,
        })?;
        on_action(action)
    };
    let to_error = |fault| explain(fault, (engine, &own), actions, &recorders);
    let results = stovepipe_runtime::step(&engine.workers, jobs, options, on_action, to_error);
    if let Err(error) = &results {
        let has_stalled = matches!(error, StepError::Stalled { .. });
        (engine.transfers).settle(engine.stall_timeout, has_stalled);
        (engine.reducers).settle(engine.stall_timeout, has_stalled);
    }
    let stages = join_replicas(engine, results?.into_iter().flatten().collect());
    let reports = Reports {
        stages: (stages.iter())
            .map(|result| (result.seat.stage, result.report.clone()))
            .collect(),
        spans: (own.into_iter())
            .map(|worker| (worker, recorders[worker].take_spans()))
            .collect(),
        passes: (training.as_ref().and_then(|own| own.sums.as_ref()))
            .map_or_else(Vec::new, PassSums::take),
    };
    Ok((stages, reports))
}

/// One result for each stage, in order, from those of its replicas.
fn join_replicas<L: Layer>(engine: &Engine, mut all: Vec<StageResult<L>>) -> Vec<StageResult<L>> {
    all.sort_by_key(|result| (result.seat.stage, result.seat.replica));
    let mut stages: Vec<StageResult<L>> = Vec::new();
    for result in all {
        match stages.last_mut() {
            Some(last) if last.seat.stage == result.seat.stage => {
                last.join(result, &engine.stages[last.seat.stage].device);
            }
            _ => stages.push(result),
        }
    }
    stages
}

/// Runs a worker's actions.
fn run_actions<L: Layer>(
    context: &mut JobContext<'_, Action>,
    actions: &[(Action, VersionUse)],
    tasks: Vec<StageTask<L>>,
    recorder: &Recorder,
) -> Result<Vec<StageResult<L>>, ActionError> {
    let begin = |task: StageTask<L>| {
        let stage = task.seat.stage;
        let actions = actions.iter().map(|&(action, _)| action);
        let own = actions.filter(|action| action.stage == stage);
        (stage, StageStep::new(task, own, recorder.clone()))
    };
    let mut stages: HashMap<_, _> = tasks.into_iter().map(begin).collect();
    for &(action, of_action) in actions {
        context.act(action, |cancel| {
            let Some(stage) = stages.get_mut(&action.stage) else {
                let cause = FailureCause::Internal("the worker does not have the stage");
                return Err(ActionError::Failed(cause));
            };
            stage.run(action, of_action, cancel)
        })?;
    }
    // All before the first wait: other workers may finish their stages in another order.
    stages.values_mut().for_each(StageStep::give_rest);
    let stages = stages.into_values();
    let finished = stages.map(|stage| stage.finish(context.cancel_token()));
    let finished = finished.collect();
    recorder.done();
    finished
}

/// Turns a fault into an error that says where it happened.
fn explain(
    fault: Fault<Action, FailureCause, BoxedError>,
    (engine, own): (&Engine, &[usize]),
    actions: &[Vec<Action>],
    recorders: &[Recorder],
) -> StepError {
    let mut flight = record::flight_record(recorders, &engine.transfers);
    for (_, record) in (flight.workers.iter_mut().enumerate()).filter(|(at, _)| !own.contains(at)) {
        record.state = WorkerState::Elsewhere;
    }
    let (worker, action, cause) = match fault {
        Fault::Failed {
            worker,
            action,
            cause,
        } => (own[worker], action, cause),
        Fault::Stalled => {
            let limit = engine.stall_timeout.unwrap_or_default();
            return StepError::Stalled { limit, flight };
        }
        Fault::Stopped => return StepError::Stopped,
        Fault::Cancelled(reason) => return StepError::Cancelled(reason),
        Fault::Lost => return StepError::Lost,
    };
    // Without an action, the worker failed while it prepared the first one.
    let Some(action) = action.or(actions[worker].first().copied()) else {
        return StepError::Lost;
    };
    let layer = match recorders[worker].state() {
        WorkerState::Running { layer, .. } => layer,
        _ => None,
    };
    StepError::Failed(Box::new(StageFailure {
        stage: action.stage,
        layer,
        action,
        device: engine.devices[worker].name.clone(),
        cause: match cause {
            Cause::Error(cause) => cause,
            Cause::Panicked(panic) => Panicked::new(&*panic).into(),
        },
        flight,
    }))
}
