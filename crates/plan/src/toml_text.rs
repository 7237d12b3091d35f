//! TOML whose errors name the line.

use std::ops::Range;

use serde::{Serialize, de::DeserializeOwned};
use toml::Spanned;

/// An error in a TOML text. Lines are counted from 1.
pub(crate) struct Fault {
    pub line: usize,
    pub source: toml::de::Error,
}

/// A TOML text that knows the lines of its values.
#[derive(Clone, Copy)]
pub(crate) struct TomlText<'a>(pub &'a str);

impl TomlText<'_> {
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, Fault> {
        toml::from_str(self.0).map_err(|error| Fault {
            line: self.line_at(error.span().unwrap_or_default()),
            source: error,
        })
    }

    /// The line of a value.
    pub fn line<T>(self, value: &Spanned<T>) -> usize {
        self.line_at(value.span())
    }

    pub fn last_line(self) -> usize {
        self.0.lines().count().max(1)
    }

    fn line_at(self, span: Range<usize>) -> usize {
        let before = self.0.as_bytes().iter().take(span.start);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }
}

/// Writes a struct of numbers, strings and lists of such structs: TOML has all of these.
pub(crate) fn write(value: &impl Serialize) -> String {
    toml::to_string(value).unwrap_or_else(|error| unreachable!("plain numbers and names: {error}"))
}
