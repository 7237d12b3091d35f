//! Errors.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Why a decoder or an adapter cannot be made.
#[derive(Debug, Error)]
pub enum DecoderError {
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A text is not JSON, or a value in it has another type.
    #[error("{what} cannot be read")]
    Json {
        /// The file, or what the text is.
        what: String,
        /// Where, and why.
        source: serde_json::Error,
    },
    /// A setting has a value that is not known.
    #[error("{}{key} is {found}: known are {known}", of_file(file))]
    Unknown {
        /// Its key.
        key: &'static str,
        /// The value.
        found: String,
        /// The known values.
        known: String,
        /// The file that has it.
        file: Option<PathBuf>,
    },
    /// A setting has a value that is not possible, or not supported.
    #[error("{}{key} is {reason}", of_file(file))]
    Value {
        /// Its key.
        key: String,
        /// The value, and what is wrong with it.
        reason: String,
        /// The file that has it.
        file: Option<PathBuf>,
    },
    /// A target of an adapter matches none of the model's linear layers.
    #[error("target_modules has {target}, which matches no linear layer: there are {known}")]
    NoTarget {
        /// The name or pattern.
        target: String,
        /// The last parts of the layers' names.
        known: String,
    },
    /// A pattern of an adapter is not valid.
    #[error("{pattern} is no valid pattern")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        source: Box<regex::Error>,
    },
}

impl DecoderError {
    pub(crate) fn value(key: impl Into<String>, reason: impl Into<String>) -> Self {
        let (key, reason, file) = (key.into(), reason.into(), None);
        Self::Value { key, reason, file }
    }

    pub(crate) fn unknown<const N: usize>(
        key: &'static str,
        found: &str,
        known: [&str; N],
    ) -> Self {
        Self::Unknown {
            key,
            found: found.to_owned(),
            known: known.join(", "),
            file: None,
        }
    }

    /// Names the file that is wrong.
    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        match &mut self {
            Self::Unknown { file, .. } | Self::Value { file, .. } => *file = Some(path.to_owned()),
            Self::Json { what, .. } => *what = path.display().to_string(),
            _ => {}
        }
        self
    }
}

fn of_file(file: &Option<PathBuf>) -> String {
    let file = file.as_ref();
    file.map_or(String::new(), |path| format!("{}: ", path.display()))
}
