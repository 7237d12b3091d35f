//! The timeline of one mini-batch.

use maud::{Markup, html};

use super::{data_url, section, wide};
use crate::{
    number::{clip, file_size},
    timeline::{SvgImage, TimelineImage},
};

const LONGEST_TITLE: usize = 300;

pub(super) fn render(timeline: Option<&TimelineImage>) -> Markup {
    let content = match timeline {
        None => return html! {},
        Some(TimelineImage::Embedded(image)) => embedded(image),
        Some(TimelineImage::Linked { bytes }) => html! {
            p .note {
                a href="timeline.svg" { "timeline.svg" } " in the run's folder is " (file_size(*bytes))
                ", too large for this page."
            }
        },
    };
    section("timeline", "Timeline of one mini-batch", content)
}

fn embedded(image: &SvgImage) -> Markup {
    let title = image.title().map(|title| format!(": {title}"));
    let title = clip(&title.unwrap_or_default(), LONGEST_TITLE);
    let alt = format!("The passes of each worker over time in one mini-batch{title}");
    let (width, height) = image.size().unzip();
    let url = data_url("image/svg+xml", image.svg().as_bytes());
    let img = html! { img .timeline src=(url) alt=(alt) width=[width] height=[height]; };
    html! {
        (wide("Timeline of one mini-batch", img))
        p .note {
            "Open " a href="timeline.svg" { "timeline.svg" } " in the run's folder and point at a pass to \
            see its name. timeline.json has the same data as a trace for Perfetto."
        }
    }
}
