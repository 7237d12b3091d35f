//! What `config.toml` says, as it was written.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// The tables of a configuration, in the file's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Settings that stand before any table are in one without a name.
    pub tables: Vec<SettingsTable>,
}

/// A table of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsTable {
    /// Its name.
    pub name: String,
    /// Names and values in the file's order. Those of tables inside have names with dots; strings
    /// are without quotes, and numbers as they were written.
    pub entries: Vec<(String, String)>,
}

impl Settings {
    /// Reads TOML.
    ///
    /// ```
    /// use stovepipe_report::Settings;
    ///
    /// let settings = Settings::parse("[training]\nlr = 4e-3\n[model]\nmodel = \"vit\"")?;
    /// assert_eq!(settings.tables[0].name, "training");
    /// assert_eq!(settings.get("training", "lr"), Some("4e-3"));
    /// assert_eq!(settings.get("model", "model"), Some("vit"));
    /// assert_eq!(settings.get("model", "layers"), None);
    /// # Ok::<(), toml::de::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is no TOML.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let root = DeTable::parse(text)?;
        let mut alone = SettingsTable::default();
        let mut tables = Vec::new();
        for (name, span, value) in in_order(root.get_ref()) {
            match value {
                DeValue::Table(inner) => {
                    let mut table = SettingsTable {
                        name: name.to_owned(),
                        entries: Vec::new(),
                    };
                    table.add_all("", inner, text);
                    tables.push(table);
                }
                value => alone.add(name.to_owned(), span, value, text),
            }
        }
        if !alone.entries.is_empty() {
            tables.insert(0, alone);
        }
        Ok(Self { tables })
    }

    /// The value of a setting.
    ///
    /// ```
    /// use stovepipe_report::Settings;
    ///
    /// let settings = Settings::parse("[pipeline]\ndevices = [\"cpu\", \"wgpu:0\"]")?;
    /// assert_eq!(settings.get("pipeline", "devices"), Some("cpu, wgpu:0"));
    /// # Ok::<(), toml::de::Error>(())
    /// ```
    #[must_use]
    pub fn get(&self, table: &str, name: &str) -> Option<&str> {
        let table = self.tables.iter().find(|of| of.name == table)?;
        let (_, value) = table.entries.iter().find(|(key, _)| key == name)?;
        Some(value)
    }
}

impl SettingsTable {
    fn add_all(&mut self, prefix: &str, table: &DeTable<'_>, text: &str) {
        for (name, span, value) in in_order(table) {
            self.add(format!("{prefix}{name}"), span, value, text);
        }
    }

    fn add(&mut self, name: String, span: Range<usize>, value: &DeValue<'_>, text: &str) {
        match value {
            DeValue::Table(table) => self.add_all(&format!("{name}."), table, text),
            value => self.entries.push((name, written(value, span, text))),
        }
    }
}

/// Names, places and values in the file's order, which the table does not keep.
fn in_order<'t>(table: &'t DeTable<'_>) -> Vec<(&'t str, Range<usize>, &'t DeValue<'t>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    (entries.into_iter())
        .map(|(name, value)| (name.get_ref().as_ref(), value.span(), value.get_ref()))
        .collect()
}

/// A value as the file has it, without quotes and brackets.
fn written(value: &DeValue<'_>, span: Range<usize>, text: &str) -> String {
    match value {
        DeValue::String(string) => string.to_string(),
        DeValue::Array(items) => {
            let items = items.iter();
            let items = items.map(|item| written(item.get_ref(), item.span(), text));
            items.collect::<Vec<_>>().join(", ")
        }
        _ => text.get(span).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Each table as `name: key = value; …`.
    fn check(text: &str, expected: &[&str]) {
        let settings = Settings::parse(text).unwrap();
        let shown = settings.tables.iter().map(|table| {
            let entries = table.entries.iter();
            let entries: Vec<_> = entries
                .map(|(key, value)| format!("{key} = {value}"))
                .collect();
            format!("{}: {}", table.name, entries.join("; "))
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn what_is_written_is_what_is_shown() {
        check("", &[]);
        check("[b]\n[a]", &["b: ", "a: "]);
        check(
            "[t]\nz = 1\na = 0.10\nm = 1e-8",
            &["t: z = 1; a = 0.10; m = 1e-8"],
        );
        check(
            "[t]\non = true\nday = 2024-02-29",
            &["t: on = true; day = 2024-02-29"],
        );
        check(
            "[t]\nnone = []\nsome = [1, [2, 3]]",
            &["t: none = ; some = 1, 2, 3"],
        );
        check(
            "[t]\nname = \"a \\\"b\\\" <c>\"",
            &["t: name = a \"b\" <c>"],
        );
        check("seed = 1\n[t]\nx = 2", &[": seed = 1", "t: x = 2"]);
        check("[t]\nx = 1\n[t.in]\ny = 2", &["t: x = 1; in.y = 2"]);
        check("[t]\nx = { y = 2, a = 3 }", &["t: x.y = 2; x.a = 3"]);
        check("\"ключ\" = 'знач'", &[": ключ = знач"]);
    }

    #[test]
    fn what_is_no_toml_is_an_error() {
        for text in ["[t", "x = ", "x = 1\nx = 2", "x = nonsense"] {
            assert!(Settings::parse(text).is_err(), "{text:?}");
        }
    }
}
