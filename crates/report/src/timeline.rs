//! The picture of a mini-batch: `timeline.svg`.

use roxmltree::{Document, Node};

use crate::error::WrongDrawing;

const SVG: &str = "http://www.w3.org/2000/svg";

/// The picture of a mini-batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Timeline {
    /// It becomes part of the page.
    Drawn(Drawing),
    /// It is so large that the page only points to it.
    Large {
        /// Its size.
        bytes: u64,
    },
}

/// An SVG document.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    svg: String,
    title: Option<String>,
    size: Option<(f64, f64)>,
}

impl Drawing {
    /// A drawing, from the text of a file.
    ///
    /// A page shows it as a picture of its own, which runs no scripts and loads nothing.
    ///
    /// ```
    /// use stovepipe_report::Drawing;
    ///
    /// let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="960" height="202" aria-label="2 workers"/>"#;
    /// let drawing = Drawing::parse(svg.to_owned())?;
    /// assert_eq!(drawing.title(), Some("2 workers"));
    /// assert_eq!(drawing.size(), Some((960.0, 202.0)));
    /// assert_eq!(drawing.svg(), svg);
    ///
    /// let wrong = Drawing::parse("<svg>\n<g>\n</svg>".to_owned()).unwrap_err();
    /// assert_eq!(wrong.line, 3);
    /// # Ok::<(), stovepipe_report::WrongDrawing>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is no well-formed SVG document, or has a document type, which could make it grow.
    pub fn parse(svg: String) -> Result<Self, WrongDrawing> {
        let document = Document::parse(&svg).map_err(|error| WrongDrawing {
            line: error.pos().row as usize,
            reason: error.to_string(),
        })?;
        let root = document.root_element();
        if !root.has_tag_name((SVG, "svg")) {
            return Err(WrongDrawing {
                line: document.text_pos_at(root.range().start).row as usize,
                reason: format!("an SVG file begins with <svg xmlns=\"{SVG}\">"),
            });
        }
        let title = root.attribute("aria-label").map(str::to_owned);
        let size = size(root);
        Ok(Self { svg, title, size })
    }

    /// Its text.
    #[must_use]
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// What it says of itself (`aria-label`).
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Its width and height in pixels, if it says so.
    #[must_use]
    pub fn size(&self) -> Option<(f64, f64)> {
        self.size
    }
}

fn size(root: Node<'_, '_>) -> Option<(f64, f64)> {
    let pixels = |name| {
        let text = root.attribute(name)?;
        let pixels: f64 = text.parse().ok()?;
        (pixels > 0.0 && pixels <= 1e6).then_some(pixels)
    };
    Some((pixels("width")?, pixels("height")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(attributes: &str, expected: Option<(f64, f64)>) {
        let svg = format!("<svg xmlns='{SVG}' {attributes}/>");
        assert_eq!(
            Drawing::parse(svg).unwrap().size(),
            expected,
            "{attributes}"
        );
    }

    #[test]
    fn a_drawing_says_how_large_it_is() {
        check("", None);
        check("width='960' height='202.5'", Some((960.0, 202.5)));
        check("width='960'", None);
        check("width='100%' height='1'", None);
        check("width='NaN' height='1'", None);
        check("width='-1' height='1'", None);
        check("width='1e300' height='1'", None);
    }

    fn check_error(text: &str, line: usize, reason: &str) {
        let error = Drawing::parse(text.to_owned()).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.reason.contains(reason), "{text:?}: {error}");
    }

    #[test]
    fn what_is_no_drawing_is_an_error() {
        check_error("", 1, "root");
        check_error("hello", 1, "token");
        check_error("\n<html/>", 2, "begins with <svg");
        check_error("<svg/>", 1, "xmlns");
        let bomb = "<!DOCTYPE svg [<!ENTITY a 'aaaa'>]>\n<svg xmlns='http://www.w3.org/2000/svg'/>";
        check_error(bomb, 1, "DTD");
    }
}
