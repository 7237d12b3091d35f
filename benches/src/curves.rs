//! A drawing of curves that should coincide: the first is broad and pale, each further one narrower
//! and darker on top of it.

use svg::{
    Node,
    node::element::{Group, Polyline},
};

use crate::drawing::{MARGIN, WIDTH, line, page, text};

/// Curves in one pair of axes.
#[derive(Clone, Debug)]
pub struct CurvePanel {
    pub title: String,
    /// The values of each curve, step by step. There may be none at some steps: NaN.
    pub curves: Vec<Vec<f64>>,
    /// What a step is, and how much of it.
    pub axis: (&'static str, f64),
}

const HEIGHT: f64 = 330.0;
/// Space for the numbers at the axes.
const GUTTER: f64 = 44.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 282.0;
const TICKS: usize = 4;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #333 } .title { font-size: 16px; font-weight: 600 }
.number { font-size: 11px; fill: #666 } .end { text-anchor: end } .middle { text-anchor: middle }
.page { fill: #fff } .grid { stroke: #ddd } polyline, .key { fill: none; stroke-linejoin: round }
.curve0 { stroke: #e2e2e2; stroke-width: 15 } .curve1 { stroke: #bcd7f2; stroke-width: 11 }
.curve2 { stroke: #5b9bd5; stroke-width: 7 } .curve3 { stroke: #f4b183; stroke-width: 4 }
.curve4 { stroke: #7f2704; stroke-width: 1.5 }";

/// Draws panels side by side. `names` are the names of the curves, at most five, in all panels.
///
/// ```
/// use stovepipe_benches::curves::{CurvePanel, draw};
///
/// let panel = CurvePanel { title: "model".into(), curves: vec![vec![2.3, 1.9], vec![2.3, 1.8]],
///     axis: ("step", 1.0) };
/// let picture = draw("losses", &["one", "other"], &[panel]);
/// assert_eq!(picture.matches("<polyline").count(), 2);
/// ```
pub fn draw(title: &str, names: &[&str], panels: &[CurvePanel]) -> String {
    let mut body = Group::new()
        .add(text("title", [MARGIN, 32.0], title))
        .add(legend(names));
    let width = (WIDTH - 2.0 * MARGIN) / panels.len().max(1) as f64;
    for (index, panel) in panels.iter().enumerate() {
        let left = MARGIN + width * index as f64;
        body.append(drawn(panel, left + GUTTER, left + width - MARGIN));
    }
    page(title, HEIGHT, STYLE, body)
}

fn legend(names: &[&str]) -> Group {
    let pitch = (WIDTH - 2.0 * MARGIN) / names.len().max(1) as f64;
    let mut legend = Group::new();
    for (index, name) in names.iter().enumerate() {
        let x = MARGIN + pitch * index as f64;
        let class = format!("key curve{index}");
        legend.append(line(&class, [x, 54.0], [x + 28.0, 54.0]));
        legend.append(text("name", [x + 36.0, 58.0], *name));
    }
    legend
}

/// A panel between two horizontal positions.
fn drawn(panel: &CurvePanel, left: f64, right: f64) -> Group {
    let values = || (panel.curves.iter().flatten().copied()).filter(|v| v.is_finite());
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max).max(low + 1e-6);
    let steps = panel.curves.iter().map(Vec::len).max().unwrap_or(0);
    let x =
        |step: usize| left + (right - left) * step as f64 / steps.saturating_sub(1).max(1) as f64;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low);
    let mut group = Group::new().add(text("name", [left, TOP - 12.0], panel.title.as_str()));
    for tick in 0..=TICKS {
        let value = low + (high - low) * tick as f64 / TICKS as f64;
        group.append(line("grid", [left, y(value)], [right, y(value)]));
        let place = [left - 6.0, y(value) + 4.0];
        group.append(text("number end", place, format!("{value:.2}")));
    }
    let mut number = |x, y, content: String| group.append(text("number middle", [x, y], content));
    for step in [0, steps / 2, steps.saturating_sub(1)] {
        let value = (step + 1) as f64 * panel.axis.1;
        let digits = usize::from(panel.axis.1.fract() != 0.0);
        number(x(step), BOTTOM + 18.0, format!("{value:.digits$}"));
    }
    number((left + right) / 2.0, BOTTOM + 34.0, panel.axis.0.to_owned());
    for (index, curve) in panel.curves.iter().enumerate() {
        let points = (curve.iter().enumerate()).filter(|(_, value)| value.is_finite());
        let points = points.map(|(step, &value)| format!("{:.1},{:.1}", x(step), y(value)));
        let curve = Polyline::new().set("class", format!("curve{index}"));
        group.append(curve.set("points", points.collect::<Vec<_>>().join(" ")));
    }
    group
}
