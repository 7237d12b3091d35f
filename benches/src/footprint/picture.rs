//! Bars of measured, predicted and published memory, item by item.

use svg::{Node, node::element::Group};

use crate::drawing::{MARGIN, WIDTH, line, page, rectangle, text};

/// The left and right ends of bars; labels are left of them, totals right.
const LEFT: f64 = 210.0;
const RIGHT: f64 = WIDTH - 84.0;
const BAR: f64 = 15.0;
const PITCH: f64 = 18.0;
/// The space above each group.
const SPACE: f64 = 12.0;
const STYLE: &str = include_str!("picture.css");

/// An item of memory, as a piece of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarPart {
    Parameters,
    Optimizer,
    /// Both, where the source reports their sum.
    Model,
    Gradients,
    /// Kept inputs, activations, and temporary values.
    Activations,
    Other,
}

impl BarPart {
    const ALL: [Self; 6] = [
        Self::Parameters,
        Self::Optimizer,
        Self::Model,
        Self::Gradients,
        Self::Activations,
        Self::Other,
    ];

    fn class(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    fn label(self) -> String {
        match self {
            Self::Model => "parameters and optimizer".to_owned(),
            Self::Activations => "activations and kept inputs".to_owned(),
            Self::Other => "mini-batch, buffers, the update".to_owned(),
            other => other.class(),
        }
    }
}

/// A bar: its label, and its pieces in bytes.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The source of the values.
    pub label: String,
    /// From left to right.
    pub parts: Vec<(BarPart, f64)>,
    /// A text in place of the total.
    pub missing: Option<&'static str>,
}

/// Groups of bars on one scale.
#[derive(Clone, Debug)]
pub struct BarPanel {
    pub title: String,
    /// The unit's name and its bytes.
    pub unit: (&'static str, f64),
    /// Groups of bars by their names.
    pub groups: Vec<(String, Vec<Bar>)>,
}

/// Draws panels below each other, as SVG.
pub fn draw(panels: &[BarPanel]) -> String {
    let mut body = Group::new();
    let mut y = legend(&mut body, panels, MARGIN + 10.0);
    for panel in panels {
        y = panel.draw(&mut body, y + 22.0);
    }
    let height = y + MARGIN / 2.0;
    page("Memory of training, by item", height, STYLE, body)
}

/// Explains the colours. Returns where the panels begin.
fn legend(body: &mut Group, panels: &[BarPanel], y: f64) -> f64 {
    let bars = || panels.iter().flat_map(|panel| &panel.groups);
    let occurs = |part: &BarPart| {
        let mut parts = bars().flat_map(|(_, bars)| bars).flat_map(|bar| &bar.parts);
        parts.any(|(other, bytes)| other == part && *bytes > 0.0)
    };
    let mut x = MARGIN;
    for part in BarPart::ALL.into_iter().filter(occurs) {
        body.append(rectangle(&part.class(), [x, y - 10.5], [12.0, 12.0]).set("rx", 2));
        body.append(text("legend", [x + 17.0, y], part.label()));
        x += 35.0 + 6.3 * part.label().len() as f64;
    }
    y + 8.0
}

impl BarPanel {
    fn draw(&self, body: &mut Group, top: f64) -> f64 {
        body.append(text("title", [MARGIN, top], self.title.as_str()));
        let totals = (self.groups.iter()).flat_map(|(_, bars)| bars.iter().map(Bar::total));
        let scale = (RIGHT - LEFT) / totals.fold(f64::MIN_POSITIVE, f64::max);
        let mut y = top + SPACE;
        for (name, bars) in &self.groups {
            body.append(text("label", [MARGIN, y + BAR - 3.0], name.as_str()));
            for bar in bars {
                bar.draw(body, y, scale, self.unit);
                y += PITCH;
            }
            y += SPACE;
        }
        let ends = [top + SPACE - 4.0, y - SPACE + 2.0];
        body.append(line("axis", [LEFT, ends[0]], [LEFT, ends[1]]));
        y
    }
}

impl Bar {
    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    fn draw(&self, body: &mut Group, y: f64, scale: f64, (unit, bytes): (&str, f64)) {
        let base = y + BAR - 3.5;
        body.append(text("who", [LEFT - 8.0, base], self.label.as_str()));
        let mut x = LEFT;
        for (part, bytes) in &self.parts {
            body.append(rectangle(&part.class(), [x, y], [bytes * scale, BAR]));
            x += bytes * scale;
        }
        let total = match (self.missing, self.total() / bytes) {
            (Some(words), _) => words.to_owned(),
            (None, total) if total < 100.0 => format!("{total:.1} {unit}"),
            (None, total) => format!("{total:.0} {unit}"),
        };
        body.append(text("total", [x + 6.0, base], total));
    }
}
