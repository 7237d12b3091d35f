//! What it costs to recompute some layers of a stage, and which choices are worth considering.
//!
//! A choice is a list of segments. Layers are added from the last to the first, because what a backward
//! pass still has in memory is what lies before. Of two choices for the same layers, the one is dropped
//! that is nowhere better: a dynamic program over the layers, as in AdaPipe (Sun et al., ASPLOS 2024).

use std::{collections::HashMap, ops::Range, rc::Rc};

use super::shape::ProfiledModel;

/// The most choices for the same layers. With more, bytes are rounded up, more and more coarsely.
const MOST_CHOICES: usize = 4096;
/// The finest such rounding is this part of a device's memory.
const ROUNDING: f64 = 4096.0;

/// Time and memory of a run of layers for a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Seconds of a forward pass with activations, and of one without.
    pub forward: f64,
    pub quiet: f64,
    /// Bytes of the activations, without the input of the first layer.
    pub activations: f64,
}

/// Time and memory of the last layers of a stage for a micro-batch that recomputes some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Recomputed {
    /// Seconds of the forward pass.
    pub quiet: f64,
    /// Seconds that run again before the gradient arrives: of the last segment.
    pub again: f64,
    /// Seconds that run again later.
    pub late: f64,
    /// Bytes kept until the backward pass: inputs of segments, and activations of other layers.
    pub inputs: f64,
    pub kept: f64,
    /// The most bytes during the backward pass.
    pub most: f64,
    begin: Begin,
    has_segment: bool,
}

/// How the last layers of a stage begin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Begin {
    /// There are none.
    #[default]
    Nothing,
    Segment,
    /// A layer that keeps its activations.
    Kept,
}

impl Recomputed {
    /// Adds layers before these that keep their activations. Among these is the input of what follows.
    pub fn keep(&mut self, run: Run) {
        self.quiet += run.forward;
        self.kept += run.activations;
        self.most += run.activations;
        self.begin = Begin::Kept;
    }

    /// Adds a segment before these layers; `output` are the bytes that it returns.
    pub fn recompute(&mut self, run: Run, output: f64) {
        self.quiet += run.quiet;
        self.enter(output);
        if self.has_segment {
            self.late += run.forward;
            self.most = self.most.max(run.activations);
        } else {
            // It runs again while all layers after it wait.
            self.again += run.forward;
            self.most += run.activations;
        }
        (self.begin, self.has_segment) = (Begin::Segment, true);
    }

    /// Adds the input of these layers.
    pub fn enter(&mut self, input: f64) {
        match self.begin {
            Begin::Nothing => return,
            Begin::Segment => self.inputs += input,
            Begin::Kept => self.kept += input,
        }
        self.most += input;
    }

    /// Whether there is a segment.
    pub fn recomputes(&self) -> bool {
        self.has_segment
    }

    /// Seconds of a micro-batch, without its backward pass.
    pub fn seconds(&self) -> f64 {
        self.quiet + self.again + self.late
    }

    /// Whether it is nowhere worse than another one, whatever comes before. If `in_all`, only the sum of the
    /// seconds counts.
    fn is_as_good_as(&self, other: &Self, in_all: bool) -> bool {
        let is_as_fast = match in_all {
            true => self.seconds() <= other.seconds(),
            false => {
                self.quiet <= other.quiet && self.again <= other.again && self.late <= other.late
            }
        };
        is_as_fast
            && self.has_segment == other.has_segment
            && self.inputs + self.kept <= other.inputs + other.kept
            && self.most <= other.most
    }

    /// Bytes rounded up to multiples of `unit`.
    fn rounded(mut self, unit: f64) -> Self {
        for bytes in [&mut self.inputs, &mut self.kept, &mut self.most] {
            *bytes = (*bytes / unit).ceil() * unit;
        }
        self
    }
}

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
    /// Whether bytes were rounded.
    pub are_rounded: bool,
}

impl Choices {
    /// Those of a stage on a device.
    pub fn of(
        &mut self,
        model: &ProfiledModel,
        device: usize,
        layers: &Range<usize>,
    ) -> Vec<Choice> {
        let mut known = (self.known.remove(&(device, layers.end))).unwrap_or_default();
        while known.len() < layers.len() {
            let next = self.next(model, device, layers.end, &known);
            known.push(next);
        }
        let mut found = known[layers.len() - 1].clone();
        self.known.insert((device, layers.end), known);
        let input = model.input(layers.start);
        found
            .iter_mut()
            .for_each(|choice| choice.costs.enter(input));
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
            let (run, output) = (model.run(device, first..after), model.output(after - 1));
            for choice in from(after) {
                let mut costs = choice.costs;
                costs.recompute(run, output);
                let segments = Some(Rc::new(Link {
                    run: first..after,
                    next: choice.segments.clone(),
                }));
                all.push(Choice { costs, segments });
            }
        }
        let mut best = undominated(all, false);
        let device = &model.machine.devices[device];
        let all: f64 = model.run(0, 0..model.layers()).activations;
        let mut unit = device.memory.map_or(all, |bytes| bytes as f64) / ROUNDING;
        while best.len() > MOST_CHOICES {
            self.are_rounded = true;
            for choice in &mut best {
                choice.costs = choice.costs.rounded(unit);
            }
            best = undominated(best, true);
            unit *= 2.0;
        }
        best
    }
}

/// Drops those that are nowhere better than another one.
fn undominated(mut all: Vec<Choice>, in_all: bool) -> Vec<Choice> {
    // One that is as good as another one comes before it.
    let key = |choice: &Choice| {
        let costs = &choice.costs;
        (costs.inputs + costs.kept, costs.most, costs.seconds())
    };
    all.sort_by(|a, b| {
        let ((a0, a1, a2), (b0, b1, b2)) = (key(a), key(b));
        (a0.total_cmp(&b0))
            .then(a1.total_cmp(&b1))
            .then(a2.total_cmp(&b2))
    });
    let mut best: Vec<Choice> = Vec::new();
    for choice in all {
        if !best
            .iter()
            .any(|other| other.costs.is_as_good_as(&choice.costs, in_all))
        {
            best.push(choice);
        }
    }
    best
}
