//! Parts that several sections share.

use base64::{Engine, engine::general_purpose::STANDARD};
use maud::{Markup, html};

use crate::number::clip;

/// Longer names are clipped: of runs, classes, layers, devices and settings.
const LONGEST_NAME: usize = 120;

/// A section with a heading.
pub(super) fn section(id: &str, heading: &str, content: Markup) -> Markup {
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading) }
            (content)
        }
    }
}

/// A box that scrolls sideways if it is too wide for the page, by finger or by keyboard.
pub(super) fn wide(label: &str, content: Markup) -> Markup {
    html! {
        div .wide role="region" aria-label=(label) tabindex="0" { (content) }
    }
}

/// A name, clipped if it is very long.
pub(super) fn name(text: &str) -> String {
    clip(text, LONGEST_NAME)
}

/// A `data:` URL.
pub(super) fn data_url(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
}
