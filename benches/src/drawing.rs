//! Elements of pictures.

use svg::{
    Document, Node,
    node::element::{Group, Line, Rectangle, Style, Text},
};

/// As wide as the text of a README.
pub(crate) const WIDTH: f64 = 960.0;
pub(crate) const MARGIN: f64 = 24.0;

/// A picture on a white page. `title` is its text for screen readers.
pub(crate) fn page(title: &str, height: f64, style: &str, body: Group) -> String {
    let mut page = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("role", "img")
        .set("aria-label", title)
        .add(Style::new(style));
    page.append(rectangle("page", [0.0, 0.0], [WIDTH, height]).set("rx", 8));
    page.add(body).to_string()
}

pub(crate) fn text(class: &str, [x, y]: [f64; 2], content: impl Into<String>) -> Text {
    Text::new(content)
        .set("class", class)
        .set("x", round(x))
        .set("y", round(y))
}

pub(crate) fn rectangle(class: &str, [x, y]: [f64; 2], [width, height]: [f64; 2]) -> Rectangle {
    Rectangle::new()
        .set("class", class)
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
}

pub(crate) fn line(class: &str, from: [f64; 2], to: [f64; 2]) -> Line {
    Line::new()
        .set("class", class)
        .set("x1", round(from[0]))
        .set("y1", round(from[1]))
        .set("x2", round(to[0]))
        .set("y2", round(to[1]))
}

/// Hundredths of a pixel are enough.
fn round(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}
