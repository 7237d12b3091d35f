//! TOML whose errors name the line.

use std::ops::Range;

use serde::{Serialize, de::DeserializeOwned};
use toml::Spanned;

/// A fault in a TOML text.
pub(crate) struct Fault {
    /// From 1.
    pub line: usize,
    pub message: String,
}

/// A TOML text, for the lines of its values.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a>(pub &'a str);

impl Text<'_> {
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, Fault> {
        toml::from_str(self.0).map_err(|error| Fault {
            line: self.line_at(error.span().unwrap_or_default()),
            message: error.message().trim().to_owned(),
        })
    }

    /// The line of a value, from 1.
    pub fn line<T>(self, value: &Spanned<T>) -> usize {
        self.line_at(value.span())
    }

    fn line_at(self, span: Range<usize>) -> usize {
        let before = self.0.as_bytes().iter().take(span.start);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }
}

/// Writes a struct of numbers, strings and lists of such structs, which has nothing in it that
/// TOML cannot say.
pub(crate) fn write(value: &impl Serialize) -> String {
    toml::to_string(value).unwrap_or_else(|error| unreachable!("plain numbers and names: {error}"))
}
