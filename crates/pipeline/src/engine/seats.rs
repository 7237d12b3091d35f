//! Where stages run.

use std::sync::Arc;

/// A place where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) stage: usize,
    /// Its place among the seats of the stage.
    pub(crate) replica: usize,
    pub(crate) worker: usize,
}

/// The seats of each stage: its replicas, which share its micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seats(Vec<Vec<Seat>>);

impl Seats {
    /// The workers of each stage.
    pub(crate) fn new<'a>(of_stages: impl IntoIterator<Item = &'a [usize]>) -> Self {
        let seats = |(stage, workers): (usize, &'a [usize])| {
            let all = workers.iter().enumerate();
            let seat = |(replica, &worker)| Seat {
                stage,
                replica,
                worker,
            };
            all.map(seat).collect()
        };
        Self(of_stages.into_iter().enumerate().map(seats).collect())
    }

    pub(crate) fn of_stage(&self, stage: usize) -> &[Seat] {
        &self.0[stage]
    }

    /// All seats, by stage.
    pub(crate) fn all(&self) -> impl Iterator<Item = Seat> {
        self.0.iter().flatten().copied()
    }

    /// The first seat of each stage.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Seat> {
        self.0.iter().map(|seats| seats[0])
    }

    pub(crate) fn stages(&self) -> usize {
        self.0.len()
    }

    /// Each stage's replicas take micro-batches one after another.
    pub(crate) fn in_turn(&self, micro_batches: usize) -> Turns {
        let turns = |seats: &Vec<Seat>| (0..micro_batches).map(|i| i % seats.len()).collect();
        Turns(self.0.iter().map(turns).collect())
    }
}

/// By stage, the replica that takes each micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turns(pub(crate) Vec<Arc<[usize]>>);

impl Turns {
    /// Whether a micro-batch is one of this seat.
    pub(crate) fn has(&self, seat: Seat, micro_batch: usize) -> bool {
        self.0[seat.stage][micro_batch] == seat.replica
    }
}
