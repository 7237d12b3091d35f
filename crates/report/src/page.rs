//! The page: a document, with a module for each section.
//!
//! All text from a run is escaped by the templates. Pictures and the timeline are images in `data:` URLs,
//! in which browsers run no scripts and load nothing. As a second barrier, the page's policy forbids
//! scripts and the network.

mod curves;
mod epochs;
mod head;
mod headline;
mod metric;
mod mistakes;
mod parts;
mod remark;
mod settings;
mod stages;
mod timeline;

use maud::{DOCTYPE, html};

use crate::report::Report;

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
                (head::render(self))
                body {
                    main {
                        (headline::render(self))
                        (curves::render(&self.epochs))
                        (mistakes::render(&self.mistakes))
                        (remark::render(self.remark.as_deref()))
                        (timeline::render(self.timeline.as_ref()))
                        (stages::render(self.summary.as_ref()))
                        (settings::render(&self.settings))
                    }
                    footer { p { "Made by Stovepipe from the files in the run's folder." } }
                }
            }
        };
        page.into_string()
    }
}
