//! The page: a document, with a module for each section.
//!
//! All text from a run is escaped by the templates. Pictures and the timeline are images in `data:` URLs,
//! in which browsers run no scripts and load nothing. As a second barrier, the page's policy forbids
//! scripts and the network.

mod classes;
mod comparison;
mod curves;
mod epochs;
mod headline;
mod images;
mod metric;
mod mistakes;
mod settings;
mod stages;

use base64::{Engine, engine::general_purpose::STANDARD};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{number::clip, read::Report};

const STYLE: &str = include_str!("page/style.css");
/// No scripts and no network. Images and styles must be part of the page.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// An embedded icon; otherwise browsers request one.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
    %3Crect y='2' width='9' height='5' rx='1' fill='%2367a9e6'/%3E\
    %3Crect x='5' y='9' width='11' height='5' rx='1' fill='%23efa040'/%3E%3C/svg%3E";

const LONGEST_REMARK: usize = 20_000;
/// Longer names are clipped: of runs, classes, layers, devices and settings.
const LONGEST_NAME: usize = 120;

impl Report {
    /// The page: a whole HTML document that needs no other file, no network and no scripts.
    ///
    /// ```
    /// use stovepipe_report::Report;
    ///
    /// let report = Report { title: "A <b>run</b>".into(), ..Report::default() };
    /// let page = report.to_html();
    /// assert!(page.starts_with("<!DOCTYPE html>"));
    /// assert!(page.contains("A &lt;b&gt;run&lt;/b&gt;"));
    /// ```
    #[must_use]
    pub fn to_html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&self.title, ""))
                body {
                    main {
                        (headline::render(self))
                        (curves::render(&self.epochs, &self.steps))
                        (classes::render(self.confusion.as_ref()))
                        (mistakes::render(&self.mistakes))
                        (remark(self.remark.as_deref()))
                        (images::render(&images::TIMELINE, self.timeline.as_ref()))
                        (images::render(&images::MEMORY, self.memory.as_ref()))
                        (stages::render(self.summary.as_ref()))
                        (settings::render(&self.settings))
                    }
                    (footer("the files in the run's folder"))
                }
            }
        };
        page.into_string()
    }
}

fn footer(source: &str) -> Markup {
    html! { footer { p { "Made by Stovepipe from " (source) "." } } }
}

/// With more rules of the style sheet.
fn head(title: &str, rules: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(POLICY);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="referrer" content="no-referrer";
            title { (name(title)) " – Stovepipe" }
            link rel="icon" href=(ICON);
            style { (PreEscaped(STYLE)) (PreEscaped(rules)) }
        }
    }
}

/// A text that the run wrote, such as a language model's sample.
fn remark(remark: Option<&str>) -> Markup {
    let Some(remark) = remark.map(str::trim).filter(|remark| !remark.is_empty()) else {
        return html! {};
    };
    let text = html! { pre { (clip(remark, LONGEST_REMARK)) } };
    section("remark", "Text", text)
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
