//! The page: a document, with a module for each section.
//!
//! All text from a run is escaped by the templates. Pictures and the timeline are images in `data:` URLs,
//! in which browsers run no scripts and load nothing. As a second barrier, the page's policy forbids
//! scripts and the network.

mod curves;
mod epochs;
mod head;
mod headline;
mod mistakes;
mod remark;
mod settings;
mod stages;
mod timeline;

use base64::{Engine, engine::general_purpose::STANDARD};
use maud::{DOCTYPE, Markup, html};

use crate::{number::clip, report::Report};

/// Longer names are clipped: of runs, classes, layers, devices and settings.
const LONGEST_NAME: usize = 120;

pub(crate) fn render(report: &Report) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head::render(report))
            body {
                main {
                    (headline::render(report))
                    (curves::render(&report.epochs))
                    (mistakes::render(&report.mistakes))
                    (remark::render(report.remark.as_deref()))
                    (timeline::render(report.timeline.as_ref()))
                    (stages::render(report.summary.as_ref()))
                    (settings::render(&report.settings))
                }
                footer { p { "Made by Stovepipe from the files in the run's folder." } }
            }
        }
    }
}

/// A section with a heading.
fn section(id: &str, heading: &str, content: Markup) -> Markup {
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading) }
            (content)
        }
    }
}

/// A box that scrolls sideways if it is too wide for the page, by finger or by keyboard.
fn wide(label: &str, content: Markup) -> Markup {
    html! {
        div .wide role="region" aria-label=(label) tabindex="0" { (content) }
    }
}

/// A name, clipped if it is very long.
fn name(text: &str) -> String {
    clip(text, LONGEST_NAME)
}

/// A `data:` URL.
fn data_url(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
}
