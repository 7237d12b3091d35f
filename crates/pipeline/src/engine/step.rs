//! One step, from the caller's side: hands each worker its list of actions, and waits until all
//! have ended.
//!
//! Workers tell how they fare in one queue of reports. The first failure calls the step off for
//! all; the caller still waits for every worker, so that nothing of a step outlives it. Only a
//! worker that reports nothing for longer than the limit is given up.

use std::{
    collections::HashMap,
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use stovepipe_schedule::{Action, Schedule, Timeline};

use crate::{
    control::{Progress, StopHandle},
    engine::{
        Engine, guard,
        links::{self, Alarm},
        record::{self, Recorder},
        stage::{Ended, Stage, StageResult, StageTask},
    },
    error::{StageFailure, StepError, WorkerState},
    layer::Layer,
};

/// How long the other workers may take to end once a worker is given up.
const GRACE: Duration = Duration::from_secs(1);

/// What all stages left behind, by stage, and what happened when.
pub(crate) struct Outcome<L: Layer> {
    pub(crate) stages: Vec<StageResult<L>>,
    pub(crate) timeline: Timeline,
}

enum Report<L: Layer> {
    Did { worker: usize, action: Action },
    Ended { worker: usize, end: End<L> },
}

enum End<L: Layer> {
    Done(Vec<(usize, StageResult<L>)>),
    Failed { action: Action, cause: String },
    CutOff,
    Stopped,
}

/// Runs a schedule. `tasks` are those of all stages, by stage. The caller holds the engine's turn.
pub(crate) fn run<L: Layer>(
    engine: &Engine,
    schedule: &Schedule,
    tasks: Vec<StageTask<L>>,
) -> Result<Outcome<L>, StepError> {
    let began = Instant::now();
    let recorders: Vec<_> = (schedule.workers().iter())
        .map(|_| Recorder::new(began))
        .collect();
    let (reports, inbox) = unbounded();
    let (siren, alarm) = bounded(0);
    let mut tasks: HashMap<_, _> = tasks.into_iter().map(|task| (task.index, task)).collect();
    for (worker, actions) in schedule.workers().iter().enumerate() {
        let mut own = Vec::new();
        for action in actions {
            own.extend(tasks.remove(&action.stage));
        }
        let walk = Walk {
            worker,
            actions: actions.clone(),
            tasks: own,
            recorder: recorders[worker].clone(),
            alarm: alarm.clone(),
            stop: engine.stop.clone(),
            reports: reports.clone(),
        };
        engine.workers[worker].run(move || walk.run());
    }
    drop(reports);
    let total = schedule.workers().iter().map(Vec::len).sum();
    Coordinator {
        engine,
        recorders,
        inbox,
        siren: Some(siren),
        waited_for: vec![true; schedule.workers().len()],
        total,
    }
    .wait(schedule.stages())
}

/// A worker's part of a step.
struct Walk<L: Layer> {
    worker: usize,
    actions: Vec<Action>,
    tasks: Vec<StageTask<L>>,
    recorder: Recorder,
    alarm: Alarm,
    stop: StopHandle,
    reports: Sender<Report<L>>,
}

impl<L: Layer> Walk<L> {
    fn run(mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        // All that the step holds is dropped by the time `walk` returns or unwinds, which is
        // before the report: the optimizer may then update parameters in place.
        let end = match catch_unwind(AssertUnwindSafe(|| self.walk(tasks))) {
            Ok(Ok(results)) => End::Done(results),
            Ok(Err(end)) => end,
            Err(panic) => End::Failed {
                action: self.current_action(),
                cause: format!("panicked: {}", guard::panic_message(&*panic)),
            },
        };
        let worker = self.worker;
        let _ = self.reports.send(Report::Ended { worker, end });
    }

    fn walk(&self, tasks: Vec<StageTask<L>>) -> Result<Vec<(usize, StageResult<L>)>, End<L>> {
        let mut stages: HashMap<_, _> = tasks
            .into_iter()
            .map(|task| (task.index, Stage::new(task, self.recorder.clone())))
            .collect();
        for &action in &self.actions {
            if self.stop.is_stopped() {
                return Err(End::Stopped);
            }
            if links::is_raised(&self.alarm) {
                return Err(End::CutOff);
            }
            let Some(stage) = stages.get_mut(&action.stage) else {
                let cause = "the worker was not given the stage".to_owned();
                return Err(End::Failed { action, cause });
            };
            stage
                .run(action, &self.alarm)
                .map_err(|ended| match ended {
                    Ended::Failed { action, cause } => End::Failed { action, cause },
                    Ended::CutOff => End::CutOff,
                })?;
            let worker = self.worker;
            let _ = self.reports.send(Report::Did { worker, action });
        }
        self.recorder.done();
        Ok((stages.into_iter())
            .map(|(index, stage)| (index, stage.finish()))
            .collect())
    }

    fn current_action(&self) -> Action {
        match self.recorder.state() {
            WorkerState::Running { action, .. } | WorkerState::Waiting { action, .. } => action,
            WorkerState::Idle => self.actions[0],
            WorkerState::Done => self.actions[self.actions.len() - 1],
        }
    }
}

/// The caller's part of a step.
struct Coordinator<'a, L: Layer> {
    engine: &'a Engine,
    recorders: Vec<Recorder>,
    inbox: Receiver<Report<L>>,
    /// Dropped to call the step off.
    siren: Option<Sender<Infallible>>,
    waited_for: Vec<bool>,
    total: usize,
}

impl<L: Layer> Coordinator<'_, L> {
    fn wait(mut self, stages: usize) -> Result<Outcome<L>, StepError> {
        let mut results: Vec<Option<StageResult<L>>> = (0..stages).map(|_| None).collect();
        let mut error = None;
        let mut done = 0;
        while self.waited_for.contains(&true) {
            match self.next_report() {
                Ok(Report::Did { worker, action }) => {
                    done += 1;
                    let total = self.total;
                    let told = self.engine.tell(&Progress {
                        worker,
                        action,
                        done,
                        total,
                    });
                    if let Err(panicked) = told {
                        error.get_or_insert(panicked);
                    }
                }
                Ok(Report::Ended { worker, end }) => {
                    self.waited_for[worker] = false;
                    match end {
                        End::Done(of_worker) => {
                            for (stage, result) in of_worker {
                                results[stage] = Some(result);
                            }
                        }
                        End::CutOff => self.siren = None,
                        End::Stopped => {
                            error.get_or_insert(StepError::Stopped);
                        }
                        End::Failed { action, cause } => {
                            // The cause of it all, unless another stage was first: then this is
                            // a second mishap of the same step.
                            let failure = self.failure(worker, action, cause);
                            if !matches!(error, Some(StepError::Failed(_))) {
                                error = Some(failure);
                            }
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.give_up());
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if error.is_some() {
                self.siren = None;
            }
        }
        if let Some(error) = error {
            return Err(error);
        }
        let results: Option<Vec<_>> = results.into_iter().collect();
        Ok(Outcome {
            stages: results.ok_or(StepError::Lost)?,
            timeline: record::timeline(&self.recorders),
        })
    }

    fn next_report(&self) -> Result<Report<L>, RecvTimeoutError> {
        match self.engine.stall_timeout {
            Some(limit) => self.inbox.recv_timeout(limit),
            None => (self.inbox.recv()).map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn failure(&self, worker: usize, action: Action, cause: String) -> StepError {
        let layer = match self.recorders[worker].state() {
            WorkerState::Running { layer, .. } => layer,
            _ => None,
        };
        StepError::Failed(Box::new(StageFailure {
            stage: action.stage,
            layer,
            action,
            device: crate::device::name(&self.engine.stages[action.stage].device),
            cause,
            flight: record::flight_record(&self.recorders),
        }))
    }

    /// Nothing was heard for too long: lets those go that only wait, and gives up the rest.
    fn give_up(mut self) -> StepError {
        let flight = record::flight_record(&self.recorders);
        self.siren = None;
        let deadline = Instant::now() + GRACE;
        while self.waited_for.contains(&true) {
            match self.inbox.recv_deadline(deadline) {
                Ok(Report::Ended { worker, .. }) => self.waited_for[worker] = false,
                Ok(Report::Did { .. }) => {}
                Err(_) => break,
            }
        }
        for (worker, _) in self
            .waited_for
            .iter()
            .enumerate()
            .filter(|(_, stuck)| **stuck)
        {
            self.engine.workers[worker].give_up();
        }
        StepError::Stalled {
            limit: self.engine.stall_timeout.unwrap_or_default(),
            flight,
        }
    }
}
