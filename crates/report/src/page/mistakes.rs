//! The worst mistakes, each with its picture.

use maud::{Markup, html};

use super::{embed, name, section};
use crate::{
    mistake::{Mistake, MistakeEntry},
    number::{self, percent},
    picture::Picture,
};

const MOST: usize = 60;
/// Smaller pictures are drawn with their pixels seen.
const TINY: usize = 64;

pub(super) fn of(mistakes: &[Mistake]) -> Markup {
    if mistakes.is_empty() {
        return html! {};
    }
    let shown = &mistakes[..mistakes.len().min(MOST)];
    let content = html! {
        p .note {
            "Test samples that the model got wrong, the worst first."
            @if mistakes.len() > MOST { " The first " (MOST) " of " (mistakes.len()) "." }
        }
        ul .mistakes role="list" { @for mistake in shown { li { (draw(mistake)) } } }
    };
    section("mistakes", "Worst mistakes", content)
}

fn draw(mistake: &Mistake) -> Markup {
    let entry = &mistake.entry;
    html! {
        figure {
            @match &mistake.picture {
                Some(picture) => (draw_picture(picture, entry)),
                None => div .picture .missing { "no picture here" },
            }
            figcaption {
                p .class { span .what { "is " } strong { (name(&entry.label)) } }
                p .class { span .what { "said " } strong { (name(&entry.said)) } }
                @for number in numbers(entry) { p .more { (number) } }
                @if let Some(file) = &entry.file { p .class .more { (name(file)) } }
            }
        }
    }
}

fn draw_picture(picture: &Picture, entry: &MistakeEntry) -> Markup {
    let (width, height) = picture.size();
    let class = match width.max(height) < TINY {
        true => "picture tiny",
        false => "picture",
    };
    let alt = format!(
        "A sample of class {}, taken for {}",
        name(&entry.label),
        name(&entry.said)
    );
    let address = embed::data(picture.media_type(), picture.bytes());
    html! { img class=(class) src=(address) alt=(alt) width=(width) height=(height); }
}

/// How sure the model was, and what it cost.
fn numbers(entry: &MistakeEntry) -> impl Iterator<Item = String> {
    let sure = (entry.probability).map(|probability| format!("{} sure", percent(probability)));
    let loss = entry
        .loss
        .map(|loss| format!("loss {}", number::decimal(loss, 2)));
    sure.into_iter().chain(loss)
}
