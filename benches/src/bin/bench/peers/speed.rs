//! Samples a second, next to PyTorch's.

use serde_json::json;
use stovepipe::{prelude::Recompute, schedule::Rule};
use stovepipe_benches::{
    Failure,
    contender::{Work, contend},
    layers::{LayerCost, cut_in_two},
    measure::{Costs, Seconds, Turn, take_turns},
    models::model,
    pace::Pace,
    peer::{Peer, Task, Way},
    piped::PipelineSettings,
    plain::RATE,
    recipe::Shape,
    report::{Table, column, number},
};

use super::{Peers, shapes};

/// What takes part in a race.
struct Entry {
    name: &'static str,
    /// Samples of one of its micro-batches.
    samples: usize,
    work: Work,
    /// What it is set against, by its place among PyTorch's.
    rival: usize,
}

/// Mini-batches of a model, and how they are cut.
struct Race {
    shape: Shape,
    batch: usize,
    micro_batches: usize,
    cut: Vec<usize>,
    /// Whether one device and recomputation take part.
    full: bool,
}

impl Peers<'_> {
    pub(crate) fn speed(&mut self) -> Result<(), Failure> {
        let shapes = shapes(&self.flags.arguments);
        let mut pace = Pace::new(2 * shapes.len());
        for shape in shapes {
            let cut = self.cut(shape)?;
            let counts = if self.flags.arguments.quick {
                [2, 4]
            } else {
                [8, 32]
            };
            for (index, micro_batches) in counts.into_iter().enumerate() {
                let race = Race {
                    shape,
                    batch: self.batch(shape, micro_batches),
                    micro_batches,
                    cut: cut.clone(),
                    full: index == 0,
                };
                let table = self.race(&race)?;
                self.report.table(table);
                pace.tell(&format!("{}, m = {micro_batches}", shape.name()));
            }
        }
        Ok(())
    }

    /// Where our stages are cut: where each layer's time for a micro-batch says.
    fn cut(&self, shape: Shape) -> Result<Vec<usize>, Failure> {
        let samples = (self.batch(shape, 8) / 8).max(1);
        let costs =
            model(shape, samples).layer_costs(if self.flags.arguments.quick { 1 } else { 5 })?;
        Ok(cut_in_two(
            &costs.iter().map(LayerCost::total).collect::<Vec<_>>(),
        )?)
    }

    /// Samples of a mini-batch, a multiple of the number of micro-batches.
    fn batch(&self, shape: Shape, micro_batches: usize) -> usize {
        let usual = match (self.flags.arguments.quick, shape) {
            // PyTorch wants more than one number a channel.
            (true, _) => 2 * micro_batches,
            (_, Shape::Amoebanet { large: false, .. }) => 64,
            (_, Shape::Amoebanet { large: true, .. }) => 16,
            (_, Shape::Transformer { .. }) => 32,
        };
        match self.flags.arguments.samples {
            Some(samples) => samples.max(1) * micro_batches,
            None => usual.max(micro_batches),
        }
    }

    fn race(&self, race: &Race) -> Result<Table, Failure> {
        let entries = race.entries();
        let rivals = if self.flags.alone {
            Vec::new()
        } else {
            race.rivals()
        };
        let least = self.flags.arguments.turn();
        let mut turns: Vec<Turn<'_>> = Vec::new();
        for entry in &entries {
            let measured = model(race.shape, entry.samples);
            turns.push(contend(&*measured, entry.work.clone())?);
        }
        let mut version = String::new();
        for way in rivals {
            let mut peer = self.peer(race, way)?;
            version.clone_from(&peer.version);
            turns.push(Box::new(move || peer.turn(least)));
        }
        let rounds = match race.shape {
            Shape::Transformer { .. } => 3,
            Shape::Amoebanet { .. } => 5,
        };
        let mut found = take_turns(&mut turns, self.flags.arguments.rounds(rounds))?;
        let theirs = found.split_off(entries.len());
        Ok(race.table(&version, &entries, &found, &theirs))
    }

    fn peer(&self, race: &Race, way: Way) -> Result<Peer, Failure> {
        let micro_batches = match &way {
            Way::OneDevice { .. } | Way::Card { .. } => 1,
            Way::Pipeline { .. } => race.micro_batches,
        };
        let way = match (way, self.flags.pytorch_cut) {
            (Way::Pipeline { cut, schedule }, Some(first)) => Way::Pipeline {
                cut: vec![first, cut.iter().sum::<usize>().saturating_sub(first)],
                schedule,
            },
            (way, _) => way,
        };
        let task = Task {
            way,
            micro_batches,
            rate: Some(RATE),
            ..self.task(race.shape, race.batch)
        };
        let peer = Peer::start(&task)?;
        let ours = model(race.shape, 1).parameters()?;
        match peer.parameters == ours {
            true => Ok(peer),
            false => {
                let message = format!("{ours} parameters here, {} in PyTorch", peer.parameters);
                Err(format!("{}: {message}", race.shape.name()).into())
            }
        }
    }
}

impl Race {
    /// Our side.
    fn entries(&self) -> Vec<Entry> {
        let layers = self.cut.iter().sum();
        let piped = |name, schedule, recompute, rival| Entry {
            name,
            samples: self.batch / self.micro_batches,
            work: Work::Piped {
                plan: PipelineSettings {
                    schedule,
                    recompute,
                    ..PipelineSettings::new(self.cut.clone(), self.micro_batches)
                },
                optimizer: true,
            },
            rival,
        };
        let (one, gpipe) = (Rule::OneForwardOneBackward, Rule::GPipe);
        let mut entries = vec![
            piped("1F1B", one, Recompute::Never, 0),
            piped("GPipe", gpipe, Recompute::Never, 1),
        ];
        if self.full {
            let twice = Recompute::ExceptLast;
            entries.push(piped("1F1B, recomputed except last", one, twice, 0));
            entries.push(piped("GPipe, recomputed except last", gpipe, twice, 1));
            let whole = |name, work, rival| Entry {
                name,
                samples: self.batch,
                work,
                rival,
            };
            let alone = Work::Plain {
                micro_batches: 1,
                optimizer: true,
            };
            let wide = Work::Piped {
                plan: PipelineSettings {
                    threads: 2,
                    ..PipelineSettings::new(vec![layers], 1)
                },
                optimizer: true,
            };
            entries.push(whole("one device, one thread", alone, 2));
            entries.push(whole("one device, two threads", wide, 3));
        }
        entries
    }

    /// PyTorch's side.
    fn rivals(&self) -> Vec<Way> {
        let piped = |schedule| Way::Pipeline {
            cut: self.cut.clone(),
            schedule,
        };
        let mut rivals = vec![piped(Rule::OneForwardOneBackward), piped(Rule::GPipe)];
        if self.full {
            rivals.extend([1, 2].map(|threads| Way::OneDevice { threads }));
        }
        rivals
    }

    fn table(&self, version: &str, entries: &[Entry], ours: &[Costs], theirs: &[Costs]) -> Table {
        let title = format!(
            "{}: {}, batch {}, m = {}, cut {:?}; {} rounds next to PyTorch {version}",
            self.shape.name(),
            self.shape.describe(),
            self.batch,
            self.micro_batches,
            self.cut,
            ours.first().map_or(0, |costs| costs.seconds.0.len()),
        );
        let columns = [
            column("way", "", 0),
            column("samples_per_second", "ours", 2),
            column("pytorch_samples_per_second", "PyTorch's", 2),
            column("over_pytorch", "ours / PyTorch's", 3),
            column("spread_percent", "±%", 1),
            column("over_one", "over one", 2),
            column("pytorch_over_one", "PyTorch's", 2),
        ];
        let mut table = Table::new(title, columns);
        let one_of = |costs: &[Costs], index: usize| costs.get(index).map(|c| c.seconds.clone());
        let (our_one, their_one) = (one_of(ours, 4), one_of(theirs, 2));
        for (entry, costs) in entries.iter().zip(ours) {
            let rival = one_of(theirs, entry.rival);
            let ratio = over(rival.as_ref(), Some(&costs.seconds));
            table.row(json!([
                entry.name,
                number(self.batch as f64 / costs.seconds.median()),
                number(
                    rival
                        .as_ref()
                        .map_or(f64::NAN, |r| self.batch as f64 / r.median())
                ),
                number(ratio.median()),
                number(100.0 * ratio.spread()),
                number(over(our_one.as_ref(), Some(&costs.seconds)).median()),
                number(over(their_one.as_ref(), rival.as_ref()).median()),
            ]));
        }
        table
    }
}

/// Seconds over seconds, round by round; nothing if one is not there.
fn over(these: Option<&Seconds>, those: Option<&Seconds>) -> Seconds {
    match (these, those) {
        (Some(these), Some(those)) => these.over(those),
        _ => Seconds::default(),
    }
}
