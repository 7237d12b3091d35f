//! The `head` element: title, style and policy.

use maud::{Markup, PreEscaped, html};

use super::parts::name;
use crate::report::Report;

const STYLE: &str = include_str!("style.css");
/// No scripts and no network. Images and styles must be part of the page.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// An embedded icon; otherwise browsers request one.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
    %3Crect y='2' width='9' height='5' rx='1' fill='%2367a9e6'/%3E\
    %3Crect x='5' y='9' width='11' height='5' rx='1' fill='%23efa040'/%3E%3C/svg%3E";

pub(super) fn render(report: &Report) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(POLICY);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="referrer" content="no-referrer";
            title { (name(&report.title)) " – Stovepipe" }
            link rel="icon" href=(ICON);
            style { (PreEscaped(STYLE)) }
        }
    }
}
