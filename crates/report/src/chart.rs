//! Line charts over epochs, as SVG inside the page.
//!
//! `series` has the data, `thin` reduces the number of points, `axis` places values and ticks, `names`
//! keeps the labels of curves apart, and `draw` writes the SVG. Colours come from the page's style sheet.

mod axis;
mod draw;
mod names;
mod series;
mod thin;

pub(crate) use series::{CurvePoint, CurveStyle, Series};
pub(crate) use thin::spread;

use crate::number;

/// The curves of one chart.
pub(crate) struct Chart {
    pub title: String,
    /// Text after the title, such as a unit.
    pub unit: Option<&'static str>,
    pub scale: ValueScale,
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
