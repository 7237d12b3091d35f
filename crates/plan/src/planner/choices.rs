//! Which choices of layers to recompute are worth considering, for runs of layers.
//!
//! Layers are added from the last to the first, because what a backward pass still has in memory is what
//! lies before. Of two choices for the same layers, the one is dropped that is nowhere better: a dynamic
//! program over the layers, as in AdaPipe (Sun et al., ASPLOS 2024).

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    rc::Rc,
};

use super::{recomputed::Recomputed, shape::ProfiledModel};

/// The most choices for the same layers. With more, bytes are rounded up, more and more coarsely.
const MOST_CHOICES: usize = 4096;
/// The same, once so many comparisons were made: planning should take seconds.
const FEWER_CHOICES: [(u64, usize); 3] = [(1 << 30, 256), (3 << 29, 32), (1 << 31, 8)];
/// Comparisons that take as long as to make a choice.
const COMPARISONS_A_CHOICE: u64 = 64;
/// The finest such rounding is this part of a device's memory.
const ROUNDING: f64 = 4096.0;

/// The segments of the last layers of a stage, the first one first.
type List = Option<Rc<Link>>;

#[derive(Debug)]
struct Link {
    run: Range<usize>,
    next: List,
}

/// What to recompute of a stage.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub costs: Recomputed,
    segments: List,
}

impl Choice {
    pub fn segments(&self) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut next = &self.segments;
        while let Some(link) = next {
            runs.push(link.run.clone());
            next = &link.next;
        }
        runs
    }
}

/// For runs of layers on devices, the choices that no other one beats.
#[derive(Default)]
pub(super) struct Choices {
    /// By device and the end of the layers: for the last layer, the last two, and so on.
    known: HashMap<(usize, usize), Vec<Vec<Choice>>>,
    /// By device and layers, with the stage's input.
    of_stages: HashMap<(usize, Range<usize>), Rc<[Choice]>>,
    /// Whether bytes were rounded.
    pub are_rounded: bool,
    comparisons: u64,
}

impl Choices {
    /// Those of a stage on a device.
    pub fn of(
        &mut self,
        model: &ProfiledModel,
        device: usize,
        layers: &Range<usize>,
    ) -> Rc<[Choice]> {
        let device = model.first_like(device);
        let stage = (device, layers.clone());
        if let Some(found) = self.of_stages.get(&stage) {
            return found.clone();
        }
        let mut known = (self.known.remove(&(device, layers.end))).unwrap_or_default();
        while known.len() < layers.len() {
            let next = self.next(model, device, layers.end, &known);
            known.push(next);
        }
        let mut found = known[layers.len() - 1].clone();
        self.known.insert((device, layers.end), known);
        let input = model.input(layers);
        found
            .iter_mut()
            .for_each(|choice| choice.costs.enter(input));
        let found: Rc<[Choice]> = found.into();
        self.of_stages.insert(stage, found.clone());
        found
    }

    /// Those with one more layer.
    fn next(
        &mut self,
        model: &ProfiledModel,
        device: usize,
        end: usize,
        known: &[Vec<Choice>],
    ) -> Vec<Choice> {
        let first = end - known.len() - 1;
        let nothing = [Choice {
            costs: Recomputed::default(),
            segments: None,
        }];
        let from = |after: usize| match after {
            _ if after == end => &nothing[..],
            _ => &known[end - after - 1],
        };
        let mut all = Vec::new();
        for choice in from(first + 1) {
            let mut choice = choice.clone();
            choice.costs.keep(model.run(device, first..first + 1));
            all.push(choice);
        }
        for after in first + 1..=end {
            let run = model.run(device, first..after);
            let passed = model.passed(first..after, after..end);
            for choice in from(after) {
                let mut costs = choice.costs;
                costs.recompute(run, passed);
                let segments = Some(Rc::new(Link {
                    run: first..after,
                    next: choice.segments.clone(),
                }));
                all.push(Choice { costs, segments });
            }
        }
        let device = &model.machine.devices[device];
        let bytes: f64 = model.run(0, 0..model.layers()).activations;
        let mut unit = device.memory.map_or(bytes, |bytes| bytes as f64) / ROUNDING;
        let is_over = |limit: &&(u64, usize)| self.comparisons > limit.0;
        let fewer = FEWER_CHOICES.iter().rev().find(is_over);
        let most = fewer.map_or(MOST_CHOICES, |(_, most)| *most);
        self.comparisons += COMPARISONS_A_CHOICE * all.len() as u64;
        // So many would take long to compare with each other.
        if all.len() > 8 * most {
            self.are_rounded = true;
            all = fastest_of_equals(all, unit);
        }
        let mut best = self.undominated(all, self.are_rounded);
        while best.len() > most {
            self.are_rounded = true;
            best = fastest_of_equals(best, unit);
            best = self.undominated(best, true);
            unit *= 2.0;
        }
        best
    }

    /// Drops those that are nowhere better than another one. If `in_all`, only the sum of the seconds counts.
    fn undominated(&mut self, mut all: Vec<Choice>, in_all: bool) -> Vec<Choice> {
        let key = |choice: &Choice| {
            let costs = &choice.costs;
            (costs.inputs + costs.kept, costs.most, costs.seconds())
        };
        // One that is as good as another one comes before it.
        all.sort_by(|a, b| {
            let ((a0, a1, a2), (b0, b1, b2)) = (key(a), key(b));
            (a0.total_cmp(&b0))
                .then(a1.total_cmp(&b1))
                .then(a2.total_cmp(&b2))
        });
        let mut best: Vec<Choice> = Vec::new();
        for choice in all {
            self.comparisons += best.len() as u64;
            let mut others = best.iter();
            if !others.any(|other| other.costs.is_as_good_as(&choice.costs, in_all)) {
                best.push(choice);
            }
        }
        best
    }
}

/// Rounds bytes up to multiples of a unit. Of choices with the same bytes, it keeps the one that takes least.
fn fastest_of_equals(all: Vec<Choice>, unit: f64) -> Vec<Choice> {
    let mut fastest: BTreeMap<(u64, u64, bool), Choice> = BTreeMap::new();
    for mut choice in all {
        choice.costs = choice.costs.rounded(unit);
        let costs = &choice.costs;
        let key = (
            ((costs.inputs + costs.kept) / unit) as u64,
            (costs.most / unit) as u64,
            costs.has_segment,
        );
        match fastest.get_mut(&key) {
            Some(known) if known.costs.seconds() <= costs.seconds() => {}
            Some(known) => *known = choice,
            None => {
                fastest.insert(key, choice);
            }
        }
    }
    fastest.into_values().collect()
}
