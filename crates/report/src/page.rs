//! The page: a document, and a section a module.
//!
//! Everything that comes from a run goes through the templates' escaping. Pictures, drawings among them, are
//! `data:` addresses of images, in which browsers run no scripts and load nothing. For the case that both should
//! fail, the page forbids itself scripts and the network.

mod curves;
mod embed;
mod epochs;
mod head;
mod headline;
mod mistakes;
mod remark;
mod settings;
mod stages;
mod timeline;

use maud::{DOCTYPE, Markup, html};

use crate::{number::clip, report::Report};

/// The longest name that is shown whole: of a run, a class, a layer, a device, a setting.
const LONGEST_NAME: usize = 120;

pub(crate) fn of(report: &Report) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head::of(report))
            body {
                main {
                    (headline::of(report))
                    (curves::of(&report.epochs))
                    (mistakes::of(&report.mistakes))
                    (remark::of(report.remark.as_deref()))
                    (timeline::of(report.timeline.as_ref()))
                    (stages::of(report.summary.as_ref()))
                    (settings::of(&report.settings))
                }
                footer { p { "Made by Stovepipe from the files of the run." } }
            }
        }
    }
}

/// A section below a heading.
fn section(id: &str, heading: &str, content: Markup) -> Markup {
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading) }
            (content)
        }
    }
}

/// A box that is scrolled sideways where it is too wide for the page, by finger or by keyboard.
fn wide(label: &str, content: Markup) -> Markup {
    html! {
        div .wide role="region" aria-label=(label) tabindex="0" { (content) }
    }
}

/// A name, cut off where it is longer than anyone would read.
fn name(text: &str) -> String {
    clip(text, LONGEST_NAME)
}
