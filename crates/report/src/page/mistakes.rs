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
        ul .mistakes { @for mistake in shown { li { (draw(mistake)) } } }
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
                p { span .what { "is " } strong { (name(&entry.label)) } }
                p {
                    span .what { "said " } strong { (name(&entry.said)) }
                    @if let Some(probability) = entry.probability { " " span .sure { (percent(probability)) } }
                }
                (draw_rest(entry))
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

/// Loss and name of a sample.
fn draw_rest(entry: &MistakeEntry) -> Markup {
    let loss = entry
        .loss
        .map(|loss| format!("loss {}", number::decimal(loss, 2)));
    let file = entry.file.as_deref().map(name);
    let rest: Vec<_> = loss.into_iter().chain(file).collect();
    html! { @if !rest.is_empty() { p .more { (rest.join(" · ")) } } }
}
