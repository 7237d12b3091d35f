//! Samples/s next to PyTorch's.

use stovepipe::{prelude::Recompute, schedule::Rule};
use stovepipe_benches::{
    Failure,
    bench_progress::BenchProgress,
    contender::{ContenderWork, contend},
    layers::{cut_in_two, totals},
    measure::{Seconds, Turn, TurnCosts, take_turns},
    models::model,
    peer::{Peer, PeerSetup, PeerTask},
    piped::PipedSettings,
    plain::RATE,
    recipe::ModelShape,
    report::{ReportTable, cell},
};

use super::{Peers, shapes};

struct Entrant {
    name: &'static str,
    /// Samples of one of its micro-batches.
    samples: usize,
    work: ContenderWork,
    /// The index of PyTorch's configuration that it is compared with.
    rival: usize,
}

/// Mini-batches of a model, and how they are cut.
struct Race {
    shape: ModelShape,
    batch: usize,
    micro_batches: usize,
    cut: Vec<usize>,
    /// Whether one device and recomputation take part.
    full: bool,
    /// Whether our stages also run in two processes.
    processes: bool,
}

impl Peers<'_> {
    pub(crate) fn speed(&mut self) -> Result<(), Failure> {
        let shapes = shapes(&self.flags.arguments);
        let quick = self.flags.arguments.quick;
        let counts = if quick { [2, 4] } else { [8, 32] };
        let mut progress = BenchProgress::new(2 * shapes.len());
        for shape in shapes {
            let cut = self.cut(shape)?;
            for (index, micro_batches) in counts.into_iter().enumerate() {
                let race = Race {
                    shape,
                    batch: self.batch(shape, micro_batches),
                    micro_batches,
                    cut: cut.clone(),
                    full: index == 0,
                    processes: self.flags.processes,
                };
                let table = self.race(&race)?;
                self.report.table(table);
                progress.done(&format!("{}, m = {micro_batches}", shape.name()));
            }
        }
        Ok(())
    }

    /// The layers of each of our stages, by their measured times.
    fn cut(&self, shape: ModelShape) -> Result<Vec<usize>, Failure> {
        let samples = (self.batch(shape, 8) / 8).max(1);
        let rounds = if self.flags.arguments.quick { 1 } else { 5 };
        let costs = model(shape, samples).layer_costs(rounds)?;
        Ok(cut_in_two(&totals(&costs))?)
    }

    /// Samples of a mini-batch, a multiple of the number of micro-batches.
    fn batch(&self, shape: ModelShape, micro_batches: usize) -> usize {
        let usual = match (self.flags.arguments.quick, shape) {
            // PyTorch's batch norm needs more than one value for each channel.
            (true, _) => 2 * micro_batches,
            (_, ModelShape::Amoebanet { large: false, .. }) => 64,
            (_, ModelShape::Amoebanet { large: true, .. }) => 16,
            (_, ModelShape::Transformer { .. }) => 32,
        };
        match self.flags.arguments.samples {
            Some(samples) => samples.max(1) * micro_batches,
            None => usual.max(micro_batches),
        }
    }

    fn race(&self, race: &Race) -> Result<ReportTable, Failure> {
        let entrants = race.entrants();
        let alone = self.flags.alone.then(Vec::new);
        let rivals = alone.unwrap_or_else(|| race.rivals());
        let minimum = self.flags.arguments.turn();
        let mut turns: Vec<Turn<'_>> = Vec::new();
        for entrant in &entrants {
            let measured = model(race.shape, entrant.samples);
            turns.push(contend(&*measured, entrant.work.clone())?);
        }
        let mut version = String::new();
        for setup in rivals {
            let mut peer = self.peer(race, setup)?;
            version.clone_from(&peer.version);
            turns.push(Box::new(move || peer.turn(minimum)));
        }
        let rounds = if race.shape.is_amoebanet() { 5 } else { 3 };
        let mut found = take_turns(&mut turns, self.flags.arguments.rounds(rounds))?;
        let theirs = found.split_off(entrants.len());
        Ok(race.table(&version, &entrants, &found, &theirs))
    }

    fn peer(&self, race: &Race, mut setup: PeerSetup) -> Result<Peer, Failure> {
        let mut micro_batches = 1;
        if let PeerSetup::Pipeline { cut, .. } = &mut setup {
            micro_batches = race.micro_batches;
            if let Some(first) = self.flags.pytorch_cut {
                *cut = vec![first, cut.iter().sum::<usize>().saturating_sub(first)];
            }
        }
        let task = PeerTask {
            micro_batches,
            rate: Some(RATE),
            ..self.task(race.shape, race.batch, setup)
        };
        Peer::start(&task)?.check(&*model(race.shape, 1))
    }
}

impl Race {
    fn entrants(&self) -> Vec<Entrant> {
        let layers = self.cut.iter().sum();
        let piped = |name, schedule, recompute, rival| Entrant {
            name,
            samples: self.batch / self.micro_batches,
            work: ContenderWork::training(&PipedSettings {
                schedule,
                recompute,
                ..PipedSettings::new(self.cut.clone(), self.micro_batches)
            }),
            rival,
        };
        let (one, gpipe) = (Rule::OneForwardOneBackward, Rule::GPipe);
        let mut entrants = vec![
            piped("1F1B", one, Recompute::Never, 0),
            piped("GPipe", gpipe, Recompute::Never, 1),
        ];
        if self.full {
            let mode = Recompute::ExceptLast;
            entrants.push(piped("1F1B, recomputed except last", one, mode, 0));
            entrants.push(piped("GPipe, recomputed except last", gpipe, mode, 1));
            let whole = |name, work, rival| Entrant {
                name,
                samples: self.batch,
                work,
                rival,
            };
            let alone = ContenderWork::Plain {
                micro_batches: 1,
                optimizer: true,
            };
            let wide = ContenderWork::training(&PipedSettings {
                threads: 2,
                ..PipedSettings::new(vec![layers], 1)
            });
            entrants.push(whole("one device, one thread", alone, 2));
            entrants.push(whole("one device, two threads", wide, 3));
        }
        if self.processes {
            for (name, schedule, rival) in [
                ("1F1B, two processes", one, 0),
                ("GPipe, two processes", gpipe, 1),
            ] {
                let mut entrant = piped(name, schedule, Recompute::Never, rival);
                if let ContenderWork::Piped { plan, .. } = &mut entrant.work {
                    plan.processes = 2;
                }
                entrants.push(entrant);
            }
        }
        entrants
    }

    fn rivals(&self) -> Vec<PeerSetup> {
        let piped = |schedule| PeerSetup::Pipeline {
            cut: self.cut.clone(),
            schedule,
            replicas: 1,
        };
        let mut rivals = vec![piped(Rule::OneForwardOneBackward), piped(Rule::GPipe)];
        if self.full {
            rivals.extend([1, 2].map(|threads| PeerSetup::OneDevice { threads }));
        }
        rivals
    }

    fn table(
        &self,
        version: &str,
        entrants: &[Entrant],
        ours: &[TurnCosts],
        theirs: &[TurnCosts],
    ) -> ReportTable {
        let (name, shape) = (self.shape.name(), self.shape.describe());
        let (batch, m, cut) = (self.batch, self.micro_batches, &self.cut);
        let rounds = ours.first().map_or(0, |costs| costs.seconds.0.len());
        let mut table = ReportTable::new(format!(
            "{name}: {shape}, batch {batch}, m = {m}, cut {cut:?}; {rounds} rounds next to PyTorch \
             {version}"
        ));
        // Missing configurations have no turns, and their medians are NaN.
        let seconds = |costs: &[TurnCosts], index: usize| {
            let costs = costs.get(index);
            costs.map_or(Seconds::default(), |costs| costs.seconds.clone())
        };
        let rate = |seconds: &Seconds| batch as f64 / seconds.median();
        let (our_one, their_one) = (seconds(ours, 4), seconds(theirs, 2));
        for (entrant, costs) in entrants.iter().zip(ours) {
            let (own, rival) = (&costs.seconds, seconds(theirs, entrant.rival));
            let ratio = rival.over(own);
            let their_ratio = their_one.over(&rival).median();
            table.row([
                cell("way", "", 0, entrant.name),
                cell("samples_per_second", "ours", 2, rate(own)),
                cell("pytorch_samples_per_second", "PyTorch's", 2, rate(&rival)),
                cell("over_pytorch", "ours / PyTorch's", 3, ratio.median()),
                cell("spread_percent", "±%", 1, 100.0 * ratio.spread()),
                cell("over_one", "over one", 2, our_one.over(own).median()),
                cell("pytorch_over_one", "PyTorch's", 2, their_ratio),
            ]);
        }
        table
    }
}
