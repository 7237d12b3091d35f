//! What there is to say in words.

use maud::{Markup, html};

use super::section;
use crate::number::clip;

const LONGEST: usize = 20_000;

pub(super) fn of(remark: Option<&str>) -> Markup {
    let Some(remark) = remark.map(str::trim).filter(|remark| !remark.is_empty()) else {
        return html! {};
    };
    section(
        "remark",
        "Remark",
        html! { pre { (clip(remark, LONGEST)) } },
    )
}
