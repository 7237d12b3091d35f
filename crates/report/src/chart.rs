//! A curve or several over epochs, as a drawing inside the page.
//!
//! `series` is what is drawn, `thin` makes less of it, `axis` says where values go and what is written beside
//! them, `names` keeps the curves' names apart, and `draw` puts it all down. Colours are the page's: a drawing
//! has classes only.

mod axis;
mod draw;
mod names;
mod series;
mod thin;

pub(crate) use series::{Look, Point, Series};
pub(crate) use thin::spread;

use crate::number;

/// What is drawn together.
pub(crate) struct Chart {
    pub title: &'static str,
    /// What stands after the title: a unit, or whose values these are.
    pub unit: Option<&'static str>,
    pub values: Values,
    pub series: Vec<Series>,
}

/// What kind of values are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Values {
    /// Of any size. If they differ by much, their axis is logarithmic.
    Wide,
    /// Of any size, and of interest next to zero.
    FromZero,
    /// Shares of one, told in percent.
    Shares,
}

impl Values {
    /// A value in words.
    pub fn told(self, value: f64) -> String {
        match self {
            Self::Wide => number::decimal(value, 4),
            Self::FromZero => number::short(value),
            Self::Shares => number::percent(value),
        }
    }
}
