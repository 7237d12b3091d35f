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
    products::{Products, step_operations},
    recipe::ModelShape,
    report::{ReportTable, cell},
};

use super::{Peers, shapes};

struct Entrant {
    name: &'static str,
    /// Samples of one of its micro-batches.
    samples: usize,
    work: ContenderWork,
    /// PyTorch's configuration that it is compared with.
    rival: Rival,
}

/// A configuration of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rival {
    Piped { schedule: Rule, recompute: bool },
    OneDevice { threads: usize },
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
    pub(super) fn cut(&self, shape: ModelShape) -> Result<Vec<usize>, Failure> {
        let samples = (self.batch(shape, 8) / 8).max(1);
        let rounds = if self.flags.arguments.quick { 1 } else { 5 };
        let costs = model(shape, samples).layer_costs(rounds)?;
        Ok(cut_in_two(&totals(&costs))?)
    }

    /// Samples of a mini-batch, a multiple of the number of micro-batches.
    pub(super) fn batch(&self, shape: ModelShape, micro_batches: usize) -> usize {
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
        let products = race.products();
        let minimum = self.flags.arguments.turn();
        let mut turns: Vec<Turn<'_>> = Vec::new();
        for entrant in &entrants {
            let measured = model(race.shape, entrant.samples);
            turns.push(contend(&*measured, entrant.work.clone())?);
        }
        let mut version = String::new();
        for &rival in &rivals {
            let mut peer = self.peer(race, rival)?;
            version.clone_from(&peer.version);
            turns.push(Box::new(move || peer.turn(minimum)));
        }
        if let Some(products) = &products {
            let measured = model(race.shape, race.batch / race.micro_batches);
            turns.push(contend(&*measured, products.clone())?);
        }
        let rounds = if race.shape.is_amoebanet() { 5 } else { 3 };
        let mut found = take_turns(&mut turns, self.flags.arguments.rounds(rounds))?;
        let mut theirs = found.split_off(entrants.len());
        let products = theirs.split_off(rivals.len()).pop();
        let found = Found {
            ours: found,
            theirs,
            rivals,
            products: products.map(|costs| costs.seconds.median()),
        };
        Ok(race.table(&version, &entrants, &found))
    }

    fn peer(&self, race: &Race, rival: Rival) -> Result<Peer, Failure> {
        let (setup, micro_batches, recompute) = match rival {
            Rival::OneDevice { threads } => (PeerSetup::OneDevice { threads }, 1, false),
            Rival::Piped {
                schedule,
                recompute,
            } => {
                let layers = race.cut.iter().sum::<usize>();
                let other = self.flags.pytorch_cut;
                let other = other.map(|first| vec![first, layers.saturating_sub(first)]);
                let setup = PeerSetup::Pipeline {
                    cut: other.unwrap_or_else(|| race.cut.clone()),
                    schedule,
                    replicas: 1,
                };
                (setup, race.micro_batches, recompute)
            }
        };
        let task = PeerTask {
            micro_batches,
            recompute,
            rate: Some(RATE),
            ..self.task(race.shape, race.batch, setup)
        };
        Peer::start(&task)?.check(&*model(race.shape, 1))
    }
}

impl Race {
    fn entrants(&self) -> Vec<Entrant> {
        let layers = self.cut.iter().sum();
        let piped = |name, schedule, recompute, both| Entrant {
            name,
            samples: self.batch / self.micro_batches,
            work: ContenderWork::training(&PipedSettings {
                schedule,
                recompute,
                ..PipedSettings::new(self.cut.clone(), self.micro_batches)
            }),
            rival: Rival::Piped {
                schedule,
                recompute: both,
            },
        };
        let (one, gpipe) = (Rule::OneForwardOneBackward, Rule::GPipe);
        let (always, except_last) = (Recompute::Always, Recompute::ExceptLast);
        let mut entrants = vec![
            piped("1F1B", one, Recompute::Never, false),
            piped("GPipe", gpipe, Recompute::Never, false),
            piped("1F1B, both recompute", one, always.clone(), true),
            piped("GPipe, both recompute", gpipe, always, true),
        ];
        if self.full {
            entrants.push(piped(
                "1F1B, only we recompute",
                one,
                except_last.clone(),
                false,
            ));
            entrants.push(piped("GPipe, only we recompute", gpipe, except_last, false));
            let whole = |name, work, threads| Entrant {
                name,
                samples: self.batch,
                work,
                rival: Rival::OneDevice { threads },
            };
            let alone = ContenderWork::Plain {
                micro_batches: 1,
                optimizer: true,
            };
            let wide = ContenderWork::training(&PipedSettings {
                threads: 2,
                ..PipedSettings::new(vec![layers], 1)
            });
            entrants.push(whole("one device, one thread", alone, 1));
            entrants.push(whole("one device, two threads", wide, 2));
        }
        if self.processes {
            for (name, schedule) in [
                ("1F1B, two processes", one),
                ("GPipe, two processes", gpipe),
            ] {
                let mut entrant = piped(name, schedule, Recompute::Never, false);
                if let ContenderWork::Piped { plan, .. } = &mut entrant.work {
                    plan.processes = 2;
                }
                entrants.push(entrant);
            }
        }
        entrants
    }

    /// PyTorch's configurations, each once.
    fn rivals(&self) -> Vec<Rival> {
        let mut rivals = Vec::new();
        for Entrant { rival, .. } in self.entrants() {
            if !rivals.contains(&rival) {
                rivals.push(rival);
            }
        }
        rivals
    }

    /// The model's matrix products alone, if they are most of its work.
    fn products(&self) -> Option<ContenderWork> {
        let threads = self.cut.len();
        step_operations(self.shape).map(|_| ContenderWork::Products { threads })
    }

    fn table(&self, version: &str, entrants: &[Entrant], found: &Found) -> ReportTable {
        let (name, shape) = (self.shape.name(), self.shape.describe());
        let (batch, m, cut) = (self.batch, self.micro_batches, &self.cut);
        let rounds = (found.ours.first()).map_or(0, |costs| costs.seconds.0.len());
        let mut table = ReportTable::new(format!(
            "{name}: {shape}, batch {batch}, m = {m}, cut {cut:?}; {rounds} rounds next to PyTorch \
             {version}"
        ));
        let rate = |seconds: &Seconds| batch as f64 / seconds.median();
        let one = Rival::OneDevice { threads: 1 };
        let is_one = |entrant: &Entrant| entrant.rival == one;
        let our_one = entrants.iter().position(is_one);
        // Missing configurations have no turns, and their medians are NaN.
        let our_one = our_one.map_or(Seconds::default(), |index| {
            found.ours[index].seconds.clone()
        });
        let their_one = found.theirs(one);
        for (entrant, costs) in entrants.iter().zip(&found.ours) {
            let (own, rival) = (&costs.seconds, found.theirs(entrant.rival));
            let ratio = rival.over(own);
            let their_ratio = their_one.over(&rival).median();
            let two_threads = (entrant.rival != one).then_some(());
            let of_products = two_threads.and_then(|()| self.of_products(found, own));
            table.row([
                cell("way", "", 0, entrant.name),
                cell("samples_per_second", "ours", 2, rate(own)),
                cell("pytorch_samples_per_second", "PyTorch's", 2, rate(&rival)),
                cell("over_pytorch", "ours / PyTorch's", 3, ratio.median()),
                cell("spread_percent", "±%", 1, 100.0 * ratio.spread()),
                cell("over_one", "over one", 2, our_one.over(own).median()),
                cell("pytorch_over_one", "PyTorch's", 2, their_ratio),
                cell("of_products", "of products", 3, of_products),
            ]);
        }
        table
    }

    /// The operations/s of a step on two threads, as a share of those of products alone. Rows with
    /// recomputation do more than is counted.
    fn of_products(&self, found: &Found, own: &Seconds) -> Option<f64> {
        let operations = step_operations(self.shape)? * self.batch as f64;
        let threads = self.cut.len();
        let products = Products::of(self.shape, self.batch / self.micro_batches, threads);
        let rate = products.operations() / found.products?;
        Some(operations / own.median() / rate)
    }
}

/// What a race measured.
struct Found {
    ours: Vec<TurnCosts>,
    theirs: Vec<TurnCosts>,
    /// Whose costs those are.
    rivals: Vec<Rival>,
    /// The seconds of a product in each thread.
    products: Option<f64>,
}

impl Found {
    fn theirs(&self, rival: Rival) -> Seconds {
        let index = self.rivals.iter().position(|other| *other == rival);
        let costs = index.and_then(|index| self.theirs.get(index));
        costs.map_or(Seconds::default(), |costs| costs.seconds.clone())
    }
}
