//! Draws a chart as SVG.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{Chart, CurvePoint, CurveStyle, Series, axis::Axis, names, thin};
use crate::number::{self, NONE};

/// In the drawing's own units; the page scales it to the width of its column.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 220.0;
/// Margins for labels.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;
/// The distance between the names of two curves.
const LINE: f64 = 16.0;
const MOST_POINTS: usize = 240;
/// The largest number of invisible strips with tooltips.
const MOST_STRIPS: usize = 120;
/// More marks would hide the curve.
const MOST_MARKS: usize = 24;

impl Chart {
    /// The chart with its title.
    pub fn draw(&self) -> Markup {
        let plot = Plot::new(self);
        let is_logarithmic = plot.as_ref().is_some_and(|plot| plot.values.is_logarithmic);
        html! {
            figure .chart {
                h3 {
                    (self.title)
                    @if let Some(unit) = self.unit { " " span .unit { (unit) } }
                    @if is_logarithmic { " " span .unit { "(logarithmic)" } }
                }
                @match plot {
                    Some(plot) => (plot.draw()),
                    None => p .note { "No finite values." },
                }
                @if let Some(missing) = self.missing() { p .note { (missing) } }
            }
        }
    }

    /// Names the epochs with values that are NaN or infinite, if others are not.
    fn missing(&self) -> Option<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let epochs = distinct_epochs(points().filter(|point| !point.is_drawable()));
        let is_partial = points().any(CurvePoint::is_drawable);
        let (first, last) = (epochs.first()?, epochs.last()?);
        let place = match epochs.len() {
            1 => format!("epoch {first}"),
            count => format!("{count} epochs between {first} and {last}"),
        };
        is_partial.then(|| format!("Not shown because NaN or infinite: {place}."))
    }
}

/// A chart with at least one drawable point, and its axes.
struct Plot<'a> {
    chart: &'a Chart,
    epochs: Axis,
    values: Axis,
}

impl<'a> Plot<'a> {
    fn new(chart: &'a Chart) -> Option<Self> {
        let points = || chart.series.iter().flat_map(Series::drawable);
        let values = || points().map(|point| point.value);
        let epochs = || points().map(|point| point.epoch);
        let low = values().min_by(f64::total_cmp)?;
        let high = values().max_by(f64::total_cmp)?;
        Some(Self {
            chart,
            epochs: Axis::of_epochs(epochs().min()?, epochs().max()?),
            values: Axis::new(low, high, chart.scale),
        })
    }

    fn draw(&self) -> Markup {
        let view = format!("0 0 {WIDTH} {HEIGHT}");
        html! {
            svg viewBox=(view) role="img" aria-label=(self.description()) {
                (self.draw_values())
                (self.draw_epochs())
                (self.draw_strips())
                @for series in &self.chart.series { (self.draw_curve(series)) }
                (self.draw_names())
            }
        }
    }

    /// The description for screen readers.
    fn description(&self) -> String {
        let format = |value| self.chart.scale.format(value);
        let mut text = format!("{} by epoch.", self.chart.title);
        for series in &self.chart.series {
            let mut points = series.drawable();
            let Some(first) = points.next() else { continue };
            let name = capital(series.name);
            let begin = format!("{} in epoch {}", format(first.value), first.epoch);
            text += &match points.last() {
                Some(last) => format!(
                    " {name}: from {begin} to {} in epoch {}.",
                    format(last.value),
                    last.epoch
                ),
                None => format!(" {name}: {begin}."),
            };
        }
        text
    }

    /// Grid lines, with the labels of values.
    fn draw_values(&self) -> Markup {
        html! {
            @for (value, label) in &self.values.ticks {
                @let y = self.y(*value);
                line .grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y) y2=(y) {}
                text .tick .size x=(LEFT - 7.0) y=(y + 4.0) { (label) }
            }
        }
    }

    fn draw_epochs(&self) -> Markup {
        let bottom = HEIGHT - BOTTOM;
        html! {
            line .axis x1=(LEFT) x2=(WIDTH - RIGHT) y1=(bottom) y2=(bottom) {}
            @for (epoch, label) in &self.epochs.ticks {
                @let x = self.x_of(*epoch);
                line .axis x1=(x) x2=(x) y1=(bottom) y2=(bottom + 4.0) {}
                text .tick .epoch x=(x) y=(bottom + 18.0) { (label) }
            }
            text .tick .epoch x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 5.0) { "epoch" }
        }
    }

    /// Invisible strips whose tooltips show the numbers of an epoch.
    fn draw_strips(&self) -> Markup {
        let epochs = self.strip_epochs();
        let xs: Vec<_> = epochs.iter().map(|epoch| self.x(*epoch)).collect();
        let between = |left: usize| (xs[left] + xs[left + 1]) / 2.0;
        html! {
            @for (index, epoch) in epochs.iter().enumerate() {
                @let left = if index == 0 { LEFT } else { between(index - 1) };
                @let right = if index + 1 == xs.len() { WIDTH - RIGHT } else { between(index) };
                rect .strip x=(round(left)) y=(TOP) width=(round(right - left))
                    height=(HEIGHT - BOTTOM - TOP) { title { (self.tooltip(*epoch)) } }
            }
        }
    }

    fn strip_epochs(&self) -> Vec<usize> {
        let epochs = distinct_epochs(self.chart.series.iter().flat_map(Series::drawable));
        let shown = thin::spread(epochs.len(), MOST_STRIPS);
        shown.map(|place| epochs[place]).collect()
    }

    fn tooltip(&self, epoch: usize) -> String {
        let mut text = format!("epoch {}", number::count(epoch as u64));
        for series in &self.chart.series {
            if let Some(point) = series.at(epoch) {
                let value = Some(point.value).filter(|_| point.is_drawable());
                let value = value.map_or(NONE.to_owned(), |value| self.chart.scale.format(value));
                text += &format!("\n{}: {value}", series.name);
            }
        }
        text
    }

    fn draw_curve(&self, series: &Series) -> Markup {
        let points = thin::thinned(&series.points, MOST_POINTS);
        let has_marks = points.len() <= MOST_MARKS;
        html! {
            g class=(series.style.class()) {
                @for run in Series::runs(&points) {
                    @if run.len() > 1 { polyline .curve points=(self.corners(run)) {} }
                    // A single point has no line.
                    @if has_marks || run.len() == 1 {
                        @for point in run { (self.mark(series.style, point)) }
                    }
                }
            }
        }
    }

    fn corners(&self, run: &[CurvePoint]) -> String {
        let corner =
            |point: &CurvePoint| format!("{},{}", self.x(point.epoch), self.y(point.value));
        run.iter().map(corner).collect::<Vec<_>>().join(" ")
    }

    fn mark(&self, style: CurveStyle, point: &CurvePoint) -> Markup {
        let (x, y) = (self.x(point.epoch), self.y(point.value));
        let at = |dx: f64, dy: f64| format!("{},{}", round(x + dx), round(y + dy));
        html! {
            @match style {
                CurveStyle::Test => circle .mark cx=(x) cy=(y) r="2.8" {},
                CurveStyle::Train => rect .mark x=(round(x - 2.3)) y=(round(y - 2.3)) width="4.6" height="4.6" {},
                CurveStyle::Averaged => polygon .mark points={
                    (at(0.0, -3.6)) " " (at(3.6, 0.0)) " " (at(0.0, 3.6)) " " (at(-3.6, 0.0))
                } {},
            }
        }
    }

    /// The names of curves beside their ends; the last value if there is only one curve.
    fn draw_names(&self) -> Markup {
        let series = &self.chart.series;
        let ends = (series.iter()).filter_map(|of| Some((of, of.drawable().last()?)));
        let ends: Vec<_> = ends.collect();
        let ys = ends.iter().map(|(_, end)| self.y(end.value) - TOP);
        let ys = names::apart(&ys.collect::<Vec<_>>(), LINE, HEIGHT - BOTTOM - TOP);
        html! {
            @for ((of, end), y) in ends.iter().zip(ys) {
                text class={ "name " (of.style.class()) } x=(WIDTH - RIGHT + 8.0) y=(round(y + TOP + 4.0)) {
                    @if series.len() == 1 { (number::short(end.value)) } @else { (of.name) }
                }
            }
        }
    }

    fn x(&self, epoch: usize) -> f64 {
        self.x_of(epoch as f64)
    }

    fn x_of(&self, epoch: f64) -> f64 {
        round(LEFT + (WIDTH - RIGHT - LEFT) * self.epochs.place(epoch))
    }

    fn y(&self, value: f64) -> f64 {
        round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * self.values.place(value))
    }
}

/// The epochs of points, each once, in ascending order.
fn distinct_epochs<'p>(points: impl Iterator<Item = &'p CurvePoint>) -> Vec<usize> {
    let epochs: BTreeSet<_> = points.map(|point| point.epoch).collect();
    epochs.into_iter().collect()
}

/// Rounds to tenths, which keeps the page small.
fn round(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_uppercase());
    first.into_iter().flatten().chain(letters).collect()
}
