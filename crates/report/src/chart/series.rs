//! What is drawn.

/// A curve.
pub(crate) struct Series {
    pub name: &'static str,
    pub look: Look,
    /// In ascending order of epochs.
    pub points: Vec<Point>,
}

/// A value of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub epoch: usize,
    pub value: f64,
}

/// How a curve looks: colour, dashes and marks all differ, so that no one of them is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Test,
    Train,
    Averaged,
}

impl Look {
    pub fn class(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Train => "train",
            Self::Averaged => "averaged",
        }
    }
}

impl Point {
    /// Whether there is a place for it. Nobody can tell larger numbers from infinity, and the arithmetic
    /// of axes cannot either.
    pub fn is_drawable(&self) -> bool {
        self.value.abs() < 1e100
    }
}

impl Series {
    /// The points that can be drawn.
    pub fn drawable(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.is_drawable())
    }

    pub fn at(&self, epoch: usize) -> Option<&Point> {
        let found = (self.points).binary_search_by_key(&epoch, |point| point.epoch);
        found.ok().map(|index| &self.points[index])
    }

    /// Points that follow each other, without those that cannot be drawn: where one is missing, the curve has a
    /// gap.
    pub fn runs(points: &[Point]) -> impl Iterator<Item = &[Point]> {
        let runs = points.split(|point| !point.is_drawable());
        runs.filter(|run| !run.is_empty())
    }
}
