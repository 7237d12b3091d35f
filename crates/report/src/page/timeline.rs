//! One mini-batch as a picture.

use maud::{Markup, html};

use super::{embed, section, wide};
use crate::{
    number::{clip, mebibytes},
    timeline::{Drawing, Timeline},
};

const LONGEST_TITLE: usize = 300;

pub(super) fn of(timeline: Option<&Timeline>) -> Markup {
    let content = match timeline {
        None => return html! {},
        Some(Timeline::Drawn(drawing)) => draw(drawing),
        Some(Timeline::Large { bytes }) => html! {
            p .note {
                a href="timeline.svg" { "timeline.svg" } " in the run's folder has " (mebibytes(*bytes))
                ", too much for this page."
            }
        },
    };
    section("timeline", "One mini-batch", content)
}

fn draw(drawing: &Drawing) -> Markup {
    let title = drawing
        .title()
        .map_or_else(String::new, |title| format!(": {title}"));
    let alt = format!(
        "Who did what when in one mini-batch{}",
        clip(&title, LONGEST_TITLE)
    );
    let (width, height) = drawing.size().unzip();
    let image = html! {
        img .timeline src=(embed::data("image/svg+xml", drawing.svg().as_bytes())) alt=(alt)
            width=[width] height=[height];
    };
    html! {
        (wide("Picture of one mini-batch", image))
        p .note {
            "In the run's folder, " a href="timeline.svg" { "timeline.svg" } " names each pass under the \
            pointer, and timeline.json is the same as a trace for Perfetto."
        }
    }
}
