//! Where stages run.

/// A place where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) stage: usize,
    /// Its place among the seats of the stage.
    pub(crate) replica: usize,
    pub(crate) worker: usize,
}

/// The seats of each stage, its replicas, which take micro-batches in turn.
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

    /// The first seat of each stage: its process and its device have the layers.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Seat> {
        self.0.iter().map(|seats| seats[0])
    }

    /// Whether a micro-batch is one of this seat.
    pub(crate) fn takes(&self, seat: Seat, micro_batch: usize) -> bool {
        micro_batch % self.of_stage(seat.stage).len() == seat.replica
    }

    pub(crate) fn stages(&self) -> usize {
        self.0.len()
    }
}
