//! A text that the run wrote, such as a language model's sample.

use maud::{Markup, html};

use super::parts::section;
use crate::number::clip;

const LONGEST: usize = 20_000;

pub(super) fn render(remark: Option<&str>) -> Markup {
    let Some(remark) = remark.map(str::trim).filter(|remark| !remark.is_empty()) else {
        return html! {};
    };
    let text = html! { pre { (clip(remark, LONGEST)) } };
    section("remark", "Text", text)
}
