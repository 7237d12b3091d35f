//! Records what each worker does and when, for timelines and errors.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use stovepipe_schedule::{Action, Span, SpanKind};

use crate::api::error::{FlightRecord, WorkerRecord, WorkerState};
use crate::engine::transfer::TransferThreads;

/// The number of actions that an error shows for each worker.
const SHOWN: usize = 8;

/// The record of one worker in one step. The worker writes it, the caller reads it.
#[derive(Clone)]
pub(crate) struct Recorder {
    began: Instant,
    record: Arc<Mutex<Record>>,
}

#[derive(Default)]
struct Record {
    state: WorkerState,
    /// Of the weights, in a window.
    version: Option<usize>,
    spans: Vec<Span>,
}

impl Recorder {
    pub(crate) fn new(began: Instant) -> Self {
        Self {
            began,
            record: Arc::default(),
        }
    }

    /// A record is complete even if its worker panicked.
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waiting(&self, action: Action, on_stage: usize) {
        self.lock().state = WorkerState::Waiting { action, on_stage };
    }

    pub(crate) fn running(&self, action: Action) {
        self.lock().state = WorkerState::Running {
            action,
            layer: None,
        };
    }

    /// The actions that follow use a version of the weights.
    pub(crate) fn using(&self, version: usize) {
        self.lock().version = Some(version);
    }

    /// It waits for the sums of a stage's gradients.
    pub(crate) fn reducing(&self, stage: usize) {
        self.lock().state = WorkerState::Reducing { stage };
    }

    /// The layer's index and name.
    pub(crate) fn in_layer(&self, now: Option<(usize, String)>) {
        if let WorkerState::Running { layer, .. } = &mut self.lock().state {
            *layer = now;
        }
    }

    pub(crate) fn done(&self) {
        self.lock().state = WorkerState::Done;
    }

    /// Runs `work` and records its span, if it succeeds.
    pub(crate) fn time<R, E>(
        &self,
        kind: SpanKind,
        action: impl Into<Option<Action>>,
        work: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let start = self.began.elapsed();
        let result = work()?;
        let end = self.began.elapsed();
        let (action, mut record) = (action.into(), self.lock());
        let version = record.version.filter(|_| action.is_some());
        record.spans.push(Span {
            action,
            kind,
            version,
            start,
            end,
        });
        Ok(result)
    }

    pub(crate) fn state(&self) -> WorkerState {
        self.lock().state.clone()
    }

    pub(crate) fn take_spans(&self) -> Vec<Span> {
        std::mem::take(&mut self.lock().spans)
    }

    fn worker_record(&self) -> WorkerRecord {
        let record = self.lock();
        let spans = record.spans.iter();
        let whole = spans.filter(|span| span.kind != SpanKind::Recompute);
        let finished: Vec<_> = whole.filter_map(|span| span.action).collect();
        WorkerRecord {
            finished: finished[finished.len().saturating_sub(SHOWN)..].to_vec(),
            state: record.state.clone(),
        }
    }
}

pub(crate) fn flight_record(recorders: &[Recorder], transfers: &TransferThreads) -> FlightRecord {
    FlightRecord {
        workers: recorders.iter().map(Recorder::worker_record).collect(),
        transfers: transfers.current(),
    }
}
