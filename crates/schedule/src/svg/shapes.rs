//! Shapes, and where the page begins.

use ::svg::node::element::{Line, Rectangle, Text};

/// The page is as wide as the text of a README.
pub(super) const WIDTH: f64 = 960.0;
pub(super) const MARGIN: f64 = 24.0;
pub(super) const LEGEND_Y: f64 = 60.0;

pub(super) fn text(class: &str, x: f64, y: f64, content: impl Into<String>) -> Text {
    Text::new(content)
        .set("class", class)
        .set("x", round(x))
        .set("y", round(y))
}

pub(super) fn rectangle(class: &str, x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    Rectangle::new()
        .set("class", class)
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
}

pub(super) fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Line {
    Line::new()
        .set("class", class)
        .set("x1", round(from.0))
        .set("y1", round(from.1))
        .set("x2", round(to.0))
        .set("y2", round(to.1))
}

/// Hundredths of a pixel are enough, and keep the file small.
pub(super) fn round(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}
