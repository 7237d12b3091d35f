//! The data of a chart.

/// A curve.
pub(crate) struct Series {
    pub name: &'static str,
    pub style: CurveStyle,
    /// In ascending order of epochs.
    pub points: Vec<CurvePoint>,
}

/// The value of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CurvePoint {
    pub epoch: usize,
    pub value: f64,
}

/// The style of a curve. Colour, dashes and marks all differ, so that any one of them is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CurveStyle {
    Test,
    Train,
    Averaged,
}

impl CurveStyle {
    pub fn class(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Train => "train",
            Self::Averaged => "averaged",
        }
    }
}

impl CurvePoint {
    /// Whether it is finite, and small enough for the arithmetic of axes.
    pub fn is_drawable(&self) -> bool {
        self.value.abs() < 1e100
    }
}

impl Series {
    pub fn drawable(&self) -> impl Iterator<Item = &CurvePoint> {
        self.points.iter().filter(|point| point.is_drawable())
    }

    pub fn at(&self, epoch: usize) -> Option<&CurvePoint> {
        let found = (self.points).binary_search_by_key(&epoch, |point| point.epoch);
        found.ok().map(|index| &self.points[index])
    }

    /// Consecutive drawable points. The curve has a gap where a point cannot be drawn.
    pub fn runs(points: &[CurvePoint]) -> impl Iterator<Item = &[CurvePoint]> {
        let runs = points.split(|point| !point.is_drawable());
        runs.filter(|run| !run.is_empty())
    }
}
