//! The worst mistakes with their pictures.

use maud::{Markup, html};

use super::{data_url, name, section};
use crate::{
    mistake::{Mistake, MistakeEntry},
    number::{self, percent},
    picture::Picture,
};

const MOST: usize = 60;
/// Smaller pictures are scaled without smoothing.
const TINY: usize = 64;

pub(super) fn render(mistakes: &[Mistake]) -> Markup {
    if mistakes.is_empty() {
        return html! {};
    }
    let shown = &mistakes[..mistakes.len().min(MOST)];
    let content = html! {
        p .note {
            "Test samples that the model misclassified, the worst first."
            @if mistakes.len() > MOST { " The first " (MOST) " of " (mistakes.len()) "." }
        }
        ul .mistakes role="list" { @for mistake in shown { li { (render_one(mistake)) } } }
    };
    section("mistakes", "Worst mistakes", content)
}

fn render_one(mistake: &Mistake) -> Markup {
    let entry = &mistake.entry;
    html! {
        figure {
            @match &mistake.picture {
                Some(picture) => (render_picture(picture, entry)),
                None => div .picture .missing { "no picture" },
            }
            figcaption {
                p .class { span .what { "label " } strong { (name(&entry.label)) } }
                p .class { span .what { "predicted " } strong { (name(&entry.said)) } }
                @for number in numbers(entry) { p .more { (number) } }
                @if let Some(file) = &entry.file { p .class .more { (name(file)) } }
            }
        }
    }
}

fn render_picture(picture: &Picture, entry: &MistakeEntry) -> Markup {
    let (width, height) = picture.size();
    let is_tiny = width.max(height) < TINY;
    let (label, said) = (name(&entry.label), name(&entry.said));
    let alt = format!("A sample of class {label}, predicted as {said}");
    let url = data_url(picture.media_type(), picture.bytes());
    html! { img .picture .tiny[is_tiny] src=(url) alt=(alt) width=(width) height=(height); }
}

/// The probability of the prediction, and the loss.
fn numbers(entry: &MistakeEntry) -> impl Iterator<Item = String> {
    let probability = (entry.probability).map(|share| format!("{} sure", percent(share)));
    let loss = (entry.loss).map(|loss| format!("loss {}", number::decimal(loss, 2)));
    probability.into_iter().chain(loss)
}
