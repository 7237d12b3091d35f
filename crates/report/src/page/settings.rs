//! The settings of the run.

use maud::{Markup, html};

use super::{name, section};
use crate::{
    number::clip,
    settings::{RunSettings, SettingsTable},
};

const LONGEST_VALUE: usize = 400;

pub(super) fn render(settings: &RunSettings) -> Markup {
    let mut tables: Vec<_> = settings.tables.iter().collect();
    tables.retain(|table| !table.entries.is_empty());
    if tables.is_empty() {
        return html! {};
    }
    let content = html! { div .settings { @for of in tables { (table(of)) } } };
    section("settings", "Settings", content)
}

fn table(table: &SettingsTable) -> Markup {
    html! {
        table {
            caption { @if table.name.is_empty() { "general" } @else { (name(&table.name)) } }
            tbody {
                @for (key, value) in &table.entries {
                    tr {
                        th scope="row" { (name(key)) }
                        @match value.trim() {
                            "" => td .none { "none" },
                            value => td { (clip(value, LONGEST_VALUE)) },
                        }
                    }
                }
            }
        }
    }
}
