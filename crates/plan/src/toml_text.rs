//! TOML whose errors name the line.

use std::ops::Range;

use serde::{Serialize, de::DeserializeOwned};
use toml::de::{DeTable, Error};

/// An error in a TOML text. Lines are counted from 1.
pub(crate) struct Fault {
    pub line: usize,
    pub source: Error,
}

/// A TOML text that finds the lines of its values.
#[derive(Clone, Copy)]
pub(crate) struct TomlText<'a>(pub &'a str);

impl TomlText<'_> {
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, Fault> {
        toml::from_str(self.0).map_err(|error| Fault {
            line: self.line_at(error.span()),
            source: error,
        })
    }

    /// The line of a key outside of lists.
    pub fn line_of(self, key: &str) -> usize {
        let file = DeTable::parse(self.0).ok();
        self.line_at(file.and_then(|file| Some(file.get_ref().get(key)?.span())))
    }

    /// The line of a key of a list's entry, or of the entry if it does not have the key.
    pub fn line_in(self, list: &str, index: usize, key: &str) -> usize {
        let span = |file: DeTable| {
            let entry = file.get(list)?.get_ref().get(index)?;
            let value = entry.get_ref().get(key);
            Some(value.map_or(entry.span(), |value| value.span()))
        };
        let file = DeTable::parse(self.0).ok();
        self.line_at(file.and_then(|file| span(file.into_inner())))
    }

    pub fn last_line(self) -> usize {
        self.0.lines().count().max(1)
    }

    fn line_at(self, span: Option<Range<usize>>) -> usize {
        let start = span.unwrap_or_default().start;
        let before = self.0.bytes().take(start);
        1 + before.filter(|&byte| byte == b'\n').count()
    }
}

/// Writes a struct of numbers, strings and lists of such structs: TOML has all of these.
pub(crate) fn write(value: &impl Serialize) -> String {
    toml::to_string(value).unwrap_or_else(|error| unreachable!("plain numbers and names: {error}"))
}
