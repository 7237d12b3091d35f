//! Images of a run: `timeline.svg`, `memory.svg`.

use roxmltree::Document;

use crate::error::SvgError;

const SVG: &str = "http://www.w3.org/2000/svg";

/// An image of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunImage {
    /// The image becomes part of the page.
    Embedded(SvgImage),
    /// The image is too large for the page, which links to it.
    Linked {
        /// Its size.
        bytes: u64,
    },
}

/// An SVG document.
#[derive(Clone, Debug, PartialEq)]
pub struct SvgImage {
    svg: String,
    title: Option<String>,
    size: Option<(f64, f64)>,
}

impl SvgImage {
    /// Parses the text of an SVG file.
    ///
    /// The page shows it as an image, which runs no scripts and loads nothing.
    ///
    /// ```
    /// use stovepipe_report::SvgImage;
    ///
    /// let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="960" height="202" aria-label="2 workers"/>"#;
    /// let image = SvgImage::parse(svg.to_owned())?;
    /// assert_eq!(image.title(), Some("2 workers"));
    /// assert_eq!(image.size(), Some((960.0, 202.0)));
    /// assert_eq!(image.svg(), svg);
    ///
    /// let error = SvgImage::parse("<svg>\n<g>\n</svg>".to_owned()).unwrap_err();
    /// assert_eq!(error.line(), 3);
    /// # Ok::<(), stovepipe_report::SvgError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is not a well-formed SVG document. A document type is refused, because its
    /// entities could expand without limit.
    pub fn parse(svg: String) -> Result<Self, SvgError> {
        let document = Document::parse(&svg).map_err(SvgError::Xml)?;
        let root = document.root_element();
        if !root.has_tag_name((SVG, "svg")) {
            let line = document.text_pos_at(root.range().start).row as usize;
            return Err(SvgError::Root { line });
        }
        let title = root.attribute("aria-label").map(str::to_owned);
        let pixels = |name| {
            let pixels: f64 = root.attribute(name)?.parse().ok()?;
            (pixels > 0.0 && pixels <= 1e6).then_some(pixels)
        };
        let size = pixels("width").zip(pixels("height"));
        Ok(Self { svg, title, size })
    }

    /// Its text.
    #[must_use]
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// Its title (`aria-label`).
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Its width and height in pixels, if the file has them.
    #[must_use]
    pub fn size(&self) -> Option<(f64, f64)> {
        self.size
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_size() {
        for (attributes, expected) in [
            ("", None),
            ("width='960' height='202.5'", Some((960.0, 202.5))),
            ("width='960'", None),
            ("width='100%' height='1'", None),
            ("width='NaN' height='1'", None),
            ("width='-1' height='1'", None),
            ("width='1e300' height='1'", None),
        ] {
            let image = SvgImage::parse(format!("<svg xmlns='{SVG}' {attributes}/>"));
            assert_eq!(image.unwrap().size(), expected, "{attributes}");
        }
    }

    #[test]
    fn other_text_is_an_error() {
        let bomb = "<!DOCTYPE svg [<!ENTITY a 'aaaa'>]>\n<svg xmlns='http://www.w3.org/2000/svg'/>";
        for (text, line, reason) in [
            ("", 1, "root"),
            ("hello", 1, "token"),
            ("\n<html/>", 2, "begins with <svg"),
            ("<svg/>", 1, "xmlns"),
            (bomb, 1, "DTD"),
        ] {
            let error = SvgImage::parse(text.to_owned()).unwrap_err();
            assert_eq!(error.line(), line, "{text:?}: {error}");
            assert!(error.to_string().contains(reason), "{text:?}: {error}");
        }
    }
}
