//! Why a report cannot be made.

use std::{error::Error, io, path::PathBuf};

use imagesize::ImageError;

/// A folder that cannot be made into a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ReportError {
    /// The folder has no files of a run.
    #[error(
        "{} is not the folder of a run: it has no config.toml, metrics.jsonl or summary.json",
        .0.display()
    )]
    NoRun(PathBuf),
    /// A file exists but cannot be read.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file has the wrong content. Lines are counted from 1.
    #[error("{}, line {line}: {reason}", path.display())]
    Malformed {
        path: PathBuf,
        line: usize,
        reason: String,
        source: Box<dyn Error + Send + Sync>,
    },
    /// More runs than a page can compare.
    #[error("{runs} runs are too many for one page: name at most {most}")]
    TooManyRuns { runs: usize, most: usize },
    /// A picture that cannot be shown.
    #[error("{}: {source}", path.display())]
    Picture { path: PathBuf, source: PictureError },
}

/// Bytes that are not a picture for a page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The bytes do not begin like a format that browsers know.
    #[error("not a PNG, JPEG, GIF or WebP file")]
    Format,
    /// The header does not give the picture's size.
    #[error("the picture's header is damaged: {0}")]
    Header(#[source] ImageError),
}

/// Text that is not an SVG document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SvgError {
    /// The text is not well-formed XML, or it has a document type.
    #[error("{0}")]
    Xml(#[source] roxmltree::Error),
    /// The root element is something else.
    #[error("an SVG file begins with <svg xmlns=\"http://www.w3.org/2000/svg\">")]
    Root {
        /// The line of the root element, counted from 1.
        line: usize,
    },
}

impl SvgError {
    /// The line of the error, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        match self {
            Self::Xml(error) => error.pos().row as usize,
            Self::Root { line } => *line,
        }
    }
}
