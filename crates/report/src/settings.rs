//! The settings in `config.toml`, as they are written there.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The tables of `config.toml`, in the file's order.
///
/// ```
/// use stovepipe_report::RunSettings;
///
/// let settings = RunSettings::parse("[training]\nlr = 4e-3\n[pipeline]\ndevices = [\"cpu\", \"wgpu:0\"]")?;
/// assert_eq!(settings.tables[0].name, "training");
/// assert_eq!(settings.get("training", "lr"), Some("4e-3"));
/// assert_eq!(settings.get("pipeline", "devices"), Some("cpu, wgpu:0"));
/// assert_eq!(settings.get("training", "layers"), None);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSettings {
    /// Settings before the first table are in one with an empty name.
    pub tables: Vec<SettingsTable>,
}

/// A table of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsTable {
    /// Its name.
    pub name: String,
    /// Names and values in the file's order. Nested tables have names with dots, strings have no
    /// quotes, and numbers are as written.
    pub entries: Vec<(String, String)>,
}

impl RunSettings {
    /// Parses TOML.
    ///
    /// # Errors
    ///
    /// If the text is not TOML.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let root = DeTable::parse(text)?;
        let mut unnamed = SettingsTable::default();
        let mut tables = Vec::new();
        for (name, value) in in_order(root.get_ref()) {
            match value.get_ref() {
                DeValue::Table(inner) => {
                    let (name, entries) = (name.to_owned(), Vec::new());
                    let mut table = SettingsTable { name, entries };
                    table.add_all("", inner, text);
                    tables.push(table);
                }
                _ => unnamed.add(name.to_owned(), value, text),
            }
        }
        if !unnamed.entries.is_empty() {
            tables.insert(0, unnamed);
        }
        Ok(Self { tables })
    }

    /// The value of a setting.
    #[must_use]
    pub fn get(&self, table: &str, name: &str) -> Option<&str> {
        // A table may be called like what is in none: `[""]`.
        let tables = self.tables.iter().filter(|of| of.name == table);
        let mut entries = tables.flat_map(|of| &of.entries);
        let (_, value) = entries.find(|(key, _)| key == name)?;
        Some(value)
    }
}

impl SettingsTable {
    fn add_all(&mut self, prefix: &str, table: &DeTable<'_>, text: &str) {
        for (name, value) in in_order(table) {
            self.add(format!("{prefix}{name}"), value, text);
        }
    }

    fn add(&mut self, name: String, value: &Spanned<DeValue<'_>>, text: &str) {
        match value.get_ref() {
            DeValue::Table(table) => self.add_all(&format!("{name}."), table, text),
            _ => self.entries.push((name, written(value, text))),
        }
    }
}

/// Names and values in the file's order, which the parser's table does not keep.
fn in_order<'t>(table: &'t DeTable<'_>) -> Vec<(&'t str, &'t Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let entries = entries.into_iter();
    entries
        .map(|(name, value)| (&**name.get_ref(), value))
        .collect()
}

/// A value as written, without quotes and brackets.
fn written(value: &Spanned<DeValue<'_>>, text: &str) -> String {
    match value.get_ref() {
        DeValue::String(string) => string.to_string(),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| written(item, text)).collect();
            items.join(", ")
        }
        _ => text.get(value.span()).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Compares each table as `name: key = value; …`.
    fn check(text: &str, expected: &[&str]) {
        let settings = RunSettings::parse(text).unwrap();
        let shown = settings.tables.iter().map(|table| {
            let entry = |(key, value): &(String, String)| format!("{key} = {value}");
            let entries: Vec<_> = table.entries.iter().map(entry).collect();
            format!("{}: {}", table.name, entries.join("; "))
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn values_are_shown_as_written() {
        check("", &[]);
        check("[b]\n[a]", &["b: ", "a: "]);
        let numbers = "[t]\nz = 1\na = 0.10\nm = 1e-8";
        check(numbers, &["t: z = 1; a = 0.10; m = 1e-8"]);
        let others = "[t]\non = true\nday = 2024-02-29";
        check(others, &["t: on = true; day = 2024-02-29"]);
        let lists = "[t]\nnone = []\nsome = [1, [2, 3]]";
        check(lists, &["t: none = ; some = 1, 2, 3"]);
        let text = "[t]\nname = \"a \\\"b\\\" <c>\"";
        check(text, &["t: name = a \"b\" <c>"]);
        check("seed = 1\n[t]\nx = 2", &[": seed = 1", "t: x = 2"]);
        check("[t]\nx = 1\n[t.in]\ny = 2", &["t: x = 1; in.y = 2"]);
        check("[t]\nx = { y = 2, a = 3 }", &["t: x.y = 2; x.a = 3"]);
        check("\"ключ\" = 'знач'", &[": ключ = знач"]);
    }

    #[test]
    fn text_that_is_not_toml_is_an_error() {
        for text in ["[t", "x = ", "x = 1\nx = 2", "x = nonsense"] {
            assert!(RunSettings::parse(text).is_err(), "{text:?}");
        }
    }
}
