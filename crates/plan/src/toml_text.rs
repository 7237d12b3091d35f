//! TOML whose errors name the line.

use std::ops::Range;

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use toml::de::DeTable;

/// The text is not TOML, lacks a value, or has one that is unknown or of the wrong kind.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("line {line}: {}", source.message().trim())]
pub struct TomlError {
    /// The line, counted from 1.
    pub line: usize,
    /// The parser's error.
    pub source: toml::de::Error,
}

/// A TOML text that finds the lines of its values.
#[derive(Clone, Copy)]
pub(crate) struct TomlText<'a>(pub &'a str);

impl TomlText<'_> {
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, TomlError> {
        toml::from_str(self.0).map_err(|source: toml::de::Error| TomlError {
            line: self.line_at(source.span()),
            source,
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
