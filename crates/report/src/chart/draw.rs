//! Draws a chart as SVG.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{Chart, CurvePoint, CurveStyle, Series, axis::Axis, thin};
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

    /// Names the places of values that are NaN or infinite, if others are not.
    fn missing(&self) -> Option<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let places = distinct_places(points().filter(|point| !point.is_drawable()));
        let is_partial = points().any(CurvePoint::is_drawable);
        let (first, last) = (places.first()?, places.last()?);
        let along = self.along;
        let place = match places.len() {
            1 => format!("{along} {first}"),
            count => format!("{count} {along}s between {first} and {last}"),
        };
        is_partial.then(|| format!("Not shown because NaN or infinite: {place}."))
    }
}

/// A chart with at least one drawable point, and its axes.
struct Plot<'a> {
    chart: &'a Chart,
    places: Axis,
    values: Axis,
}

impl<'a> Plot<'a> {
    fn new(chart: &'a Chart) -> Option<Self> {
        let points = || chart.series.iter().flat_map(Series::drawable);
        let values = || points().map(|point| point.value);
        let places = || points().map(|point| point.at);
        let low = values().min_by(f64::total_cmp)?;
        let high = values().max_by(f64::total_cmp)?;
        Some(Self {
            chart,
            places: Axis::of_counts(places().min()?, places().max()?),
            values: Axis::new(low, high, chart.scale),
        })
    }

    fn draw(&self) -> Markup {
        let view = format!("0 0 {WIDTH} {HEIGHT}");
        html! {
            svg viewBox=(view) role="img" aria-label=(self.description()) {
                (self.draw_values())
                (self.draw_places())
                (self.draw_strips())
                @for series in &self.chart.series { (self.draw_curve(series)) }
                (self.draw_names())
            }
        }
    }

    /// The description for screen readers.
    fn description(&self) -> String {
        let format = |value| self.chart.scale.format(value);
        let along = self.chart.along;
        let mut text = format!("{} by {along}.", self.chart.title);
        let place = |point: &CurvePoint| format!("{} in {along} {}", format(point.value), point.at);
        for series in &self.chart.series {
            let mut points = series.drawable();
            let Some(first) = points.next().map(place) else {
                continue;
            };
            let name = number::capital(&series.name);
            text += &match points.last().map(place) {
                Some(last) => format!(" {name}: from {first} to {last}."),
                None => format!(" {name}: {first}."),
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

    fn draw_places(&self) -> Markup {
        let bottom = HEIGHT - BOTTOM;
        html! {
            line .axis x1=(LEFT) x2=(WIDTH - RIGHT) y1=(bottom) y2=(bottom) {}
            @for (place, label) in &self.places.ticks {
                @let x = self.x_of(*place);
                line .axis x1=(x) x2=(x) y1=(bottom) y2=(bottom + 4.0) {}
                text .tick .epoch x=(x) y=(bottom + 18.0) { (label) }
            }
            text .tick .epoch x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 5.0) { (self.chart.along) }
        }
    }

    /// Invisible strips whose tooltips show the numbers of an epoch or a step.
    fn draw_strips(&self) -> Markup {
        let places = self.strip_places();
        let xs: Vec<_> = places.iter().map(|place| self.x(*place)).collect();
        let between = |left: usize| (xs[left] + xs[left + 1]) / 2.0;
        html! {
            @for (index, place) in places.iter().enumerate() {
                @let left = if index == 0 { LEFT } else { between(index - 1) };
                @let right = if index + 1 == xs.len() { WIDTH - RIGHT } else { between(index) };
                rect .strip x=(round(left)) y=(TOP) width=(round(right - left))
                    height=(HEIGHT - BOTTOM - TOP) { title { (self.tooltip(*place)) } }
            }
        }
    }

    fn strip_places(&self) -> Vec<usize> {
        let places = distinct_places(self.chart.series.iter().flat_map(Series::drawable));
        let shown = thin::spread(places.len(), MOST_STRIPS);
        shown.map(|index| places[index]).collect()
    }

    fn tooltip(&self, place: usize) -> String {
        let mut text = format!("{} {}", self.chart.along, number::count(place as u64));
        for series in &self.chart.series {
            if let Some(point) = series.at(place) {
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
        let corner = |point: &CurvePoint| format!("{},{}", self.x(point.at), self.y(point.value));
        run.iter().map(corner).collect::<Vec<_>>().join(" ")
    }

    fn mark(&self, style: CurveStyle, point: &CurvePoint) -> Markup {
        let (x, y) = (self.x(point.at), self.y(point.value));
        let style = match style {
            CurveStyle::Run(index) if index % 2 == 1 => CurveStyle::Train,
            other => other,
        };
        let at = |dx: f64, dy: f64| format!("{},{}", round(x + dx), round(y + dy));
        html! {
            @match style {
                CurveStyle::Test | CurveStyle::Run(_) => circle .mark cx=(x) cy=(y) r="2.8" {},
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
        let ys = apart(&ys.collect::<Vec<_>>(), LINE, HEIGHT - BOTTOM - TOP);
        html! {
            @for ((of, end), y) in ends.iter().zip(ys) {
                text class={ "name " (of.style.class()) } x=(WIDTH - RIGHT + 8.0) y=(round(y + TOP + 4.0)) {
                    @if series.len() == 1 { (number::short(end.value)) } @else { (of.name) }
                }
            }
        }
    }

    fn x(&self, place: usize) -> f64 {
        self.x_of(place as f64)
    }

    fn x_of(&self, place: f64) -> f64 {
        round(LEFT + (WIDTH - RIGHT - LEFT) * self.places.place(place))
    }

    fn y(&self, value: f64) -> f64 {
        round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * self.values.place(value))
    }
}

/// The places of points, each once, in ascending order.
fn distinct_places<'p>(points: impl Iterator<Item = &'p CurvePoint>) -> Vec<usize> {
    let places: BTreeSet<_> = points.map(|point| point.at).collect();
    places.into_iter().collect()
}

/// Rounds to tenths, which keeps the page small.
fn round(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

/// Moves positions in `0..=height` apart by `distance`, as little as possible, and keeps their order.
fn apart(places: &[f64], distance: f64, height: f64) -> Vec<f64> {
    let mut order: Vec<_> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    let mut moved = places.to_vec();
    let mut lowest = 0.0_f64;
    for &index in &order {
        moved[index] = moved[index].max(lowest);
        lowest = moved[index] + distance;
    }
    let mut highest = height;
    for &index in order.iter().rev() {
        moved[index] = moved[index].min(highest);
        highest = moved[index] - distance;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_overlap() {
        let check = |places: &[f64], expected: &[f64]| {
            assert_eq!(apart(places, 10.0, 100.0), expected, "{places:?}");
        };
        check(&[], &[]);
        check(&[50.0], &[50.0]);
        check(&[50.0, 20.0], &[50.0, 20.0]);
        check(&[50.0, 52.0], &[50.0, 60.0]);
        check(&[52.0, 50.0], &[60.0, 50.0]);
        check(&[99.0, 100.0, 98.0], &[90.0, 100.0, 80.0]);
        check(&[0.0, 0.0, 0.0], &[0.0, 10.0, 20.0]);
    }
}
