//! Images of one mini-batch: who did what when, and what was in memory.

use maud::{Markup, html};

use super::{data_url, section, wide};
use crate::{
    image::{RunImage, SvgImage},
    number::{clip, file_size},
};

const LONGEST_TITLE: usize = 300;

/// An image in the run's folder, and what the page says about it.
pub(super) struct Shown {
    id: &'static str,
    file: &'static str,
    title: &'static str,
    alt: &'static str,
    note: &'static str,
}

pub(super) const TIMELINE: Shown = Shown {
    id: "timeline",
    file: "timeline.svg",
    title: "Timeline of one mini-batch",
    alt: "The passes of each worker over time in one mini-batch",
    note: " in the run's folder and point at a pass to see its name. timeline.json has the same data as a trace \
           for Perfetto.",
};

pub(super) const MEMORY: Shown = Shown {
    id: "memory",
    file: "memory.svg",
    title: "Predicted memory of one mini-batch",
    alt: "What each worker keeps over time in one mini-batch",
    note: " in the run's folder to see it alone. It was predicted from measured layers before the run began. \
           A line in the last row was counted, with train --measure-memory.",
};

pub(super) fn render(shown: &Shown, image: Option<&RunImage>) -> Markup {
    let content = match image {
        None => return html! {},
        Some(RunImage::Embedded(image)) => embedded(shown, image),
        Some(RunImage::Linked { bytes }) => html! {
            p .note {
                a href=(shown.file) { (shown.file) } " in the run's folder is " (file_size(*bytes))
                ", too large for this page."
            }
        },
    };
    section(shown.id, shown.title, content)
}

fn embedded(shown: &Shown, image: &SvgImage) -> Markup {
    let title = image.title().map(|title| format!(": {title}"));
    let title = clip(&title.unwrap_or_default(), LONGEST_TITLE);
    let alt = format!("{}{title}", shown.alt);
    let (width, height) = image.size().unzip();
    let url = data_url("image/svg+xml", image.svg().as_bytes());
    let img = html! { img .timeline src=(url) alt=(alt) width=[width] height=[height]; };
    html! {
        (wide(shown.title, img))
        p .note { "Open " a href=(shown.file) { (shown.file) } (shown.note) }
    }
}
