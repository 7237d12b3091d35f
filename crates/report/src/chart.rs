//! Line charts over epochs or steps, as SVG inside the page.
//!
//! `thin` reduces the number of points, `axis` places values and ticks, and `draw` writes the SVG. Colours come from the page's style sheet.

mod axis;
mod draw;
mod thin;

pub(crate) use thin::spread;

use std::borrow::Cow;

use crate::number;

/// The curves of one chart.
pub(crate) struct Chart {
    pub title: String,
    /// Text after the title, such as a unit.
    pub unit: Option<&'static str>,
    pub scale: ValueScale,
    /// What the horizontal axis counts: `epoch` or `step`.
    pub along: &'static str,
    pub series: Vec<Series>,
}

/// How values are scaled and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValueScale {
    /// The axis is logarithmic where values differ by a large factor.
    Wide,
    /// The axis includes zero.
    FromZero,
    /// Shares from 0 to 1, in percent.
    Shares,
}

impl ValueScale {
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Wide => number::decimal(value, 4),
            Self::FromZero => number::short(value),
            Self::Shares => number::percent(value),
        }
    }
}

/// A curve.
pub(crate) struct Series {
    pub name: Cow<'static, str>,
    pub style: CurveStyle,
    /// In ascending order.
    pub points: Vec<CurvePoint>,
}

/// The value of an epoch or a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CurvePoint {
    pub at: usize,
    pub value: f64,
}

/// Six colours, each with two kinds of lines.
const RUNS: [&str; 12] = [
    "run-1",
    "run-2",
    "run-3",
    "run-4",
    "run-5",
    "run-6",
    "run-1 other",
    "run-2 other",
    "run-3 other",
    "run-4 other",
    "run-5 other",
    "run-6 other",
];

/// The style of a curve. Colour, dashes and marks all differ, so that any one of them is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CurveStyle {
    Test,
    Train,
    Averaged,
    /// Of one of several runs, by its index.
    Run(usize),
}

impl CurveStyle {
    pub fn class(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Train => "train",
            Self::Averaged => "averaged",
            Self::Run(index) => RUNS[index % RUNS.len()],
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

    pub fn at(&self, at: usize) -> Option<&CurvePoint> {
        let found = (self.points).binary_search_by_key(&at, |point| point.at);
        found.ok().map(|index| &self.points[index])
    }

    /// Consecutive drawable points. The curve has a gap where a point cannot be drawn.
    pub fn runs(points: &[CurvePoint]) -> impl Iterator<Item = &[CurvePoint]> {
        let runs = points.split(|point| !point.is_drawable());
        runs.filter(|run| !run.is_empty())
    }
}
