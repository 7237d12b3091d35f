//! Why there is no report of a run.

use std::{io, path::PathBuf};

use thiserror::Error;

/// A folder that no report can be made of.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReportError {
    // The folder.
    /// It has nothing that a run leaves.
    #[error(
        "{} is no run's folder: it has neither config.toml nor metrics.jsonl nor summary.json",
        .0.display()
    )]
    NoRun(PathBuf),
    /// A file is there, but cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },

    // What its files hold.
    /// A file does not hold what it should.
    #[error("{}, line {line}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A picture that is none.
    #[error("{}: {source}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: WrongPicture,
    },
}

/// Bytes that are no picture for a page.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WrongPicture {
    /// They begin as none of the formats that browsers know.
    #[error("this is no PNG, JPEG, GIF or WebP file")]
    Format,
    /// They begin as one, but do not say how large it is.
    #[error("the picture's header is damaged: {0}")]
    Header(String),
}

/// Text that is no drawing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct WrongDrawing {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}
