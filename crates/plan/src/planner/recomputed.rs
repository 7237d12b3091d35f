//! What it costs to recompute some layers of a stage.
//!
//! A choice is a list of segments. Layers are added from the last to the first, because what a backward
//! pass still has in memory is what lies before.

/// Time and memory of a run of layers for a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Seconds of a forward pass with activations, and of one without.
    pub forward: f64,
    pub quiet: f64,
    /// Bytes of the activations, without the input of the first layer.
    pub activations: f64,
    /// The most bytes that a pass of these layers needs besides. While a layer runs, later ones have kept nothing yet, or
    /// no more.
    pub workspace: f64,
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
    /// The most bytes during the backward pass, with what layers need besides.
    pub most: f64,
    begin: Begin,
    /// Whether there is a segment.
    pub has_segment: bool,
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
        self.most = run.activations + self.most.max(run.workspace);
        self.begin = Begin::Kept;
    }

    /// Adds a segment before these layers; `output` and `skips` are the bytes that it passes to them.
    pub fn recompute(&mut self, run: Run, [output, skips]: [f64; 2]) {
        self.quiet += run.quiet;
        self.enter(output + skips);
        // When it goes backward, the gradients of its skips have come.
        let beside = run.workspace + skips;
        if self.has_segment {
            self.late += run.forward;
            self.most = self.most.max(run.activations + beside);
        } else {
            // It runs again while all layers after it wait.
            self.again += run.forward;
            self.most = run.activations + self.most.max(beside);
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

    /// Seconds of a micro-batch, without its backward pass.
    pub fn seconds(&self) -> f64 {
        self.quiet + self.again + self.late
    }

    /// Whether it is nowhere worse than another one, whatever comes before. If `in_all`, only the sum of the
    /// seconds counts.
    pub fn is_as_good_as(&self, other: &Self, in_all: bool) -> bool {
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
    pub fn rounded(mut self, unit: f64) -> Self {
        for bytes in [&mut self.inputs, &mut self.kept, &mut self.most] {
            *bytes = (*bytes / unit).ceil() * unit;
        }
        self
    }
}
