//! An HTML report of a training run: one file, made from the files in the run's folder.
//!
//! [`Report::read`] reads the folder, and [`Report::to_html`] makes the page. You can make it again at
//! any time, also of a run that was interrupted. Sections without data are left out.
//!
//! | file | what the page shows of it |
//! |---|---|
//! | `config.toml` | the settings |
//! | `metrics.jsonl` | the curves, and a table of their numbers |
//! | `steps.jsonl` | the curves by step |
//! | `summary.json` | the results at the top, and the stages |
//! | `timeline.svg` | the timeline of a mini-batch |
//! | `memory.svg` | the memory of a mini-batch, as it was predicted |
//! | `remark.txt` | a text, such as a language model's sample |
//! | `confusion.json` | the accuracy of each class, and the confusion matrix: a [`Confusion`] |
//! | `mistakes.json` | the worst mistakes: a list of [`MistakeEntry`], with images beside it |
//!
//! The page runs no scripts and loads nothing. It works on phones and on paper, on dark and light
//! screens, and with screen readers.
//!
//! ```
//! use stovepipe_report::{Epoch, Report, TestScores};
//!
//! let epoch = |epoch, loss, accuracy| Epoch {
//!     epoch,
//!     train_loss: loss,
//!     test: Some(TestScores { loss, metrics: [("accuracy".to_owned(), accuracy)].into() }),
//!     ..Epoch::default()
//! };
//! let report = Report {
//!     title: "digits".into(),
//!     epochs: vec![epoch(1, 1.82, 0.54), epoch(2, 0.74, 0.94)],
//!     ..Report::default()
//! };
//! let page = report.to_html();
//! assert!(page.contains("<svg"));
//! assert!(!page.contains("<script"));
//! ```

mod chart;
mod comparison;
mod confusion;
mod error;
mod image;
mod lines;
mod mistake;
mod number;
mod page;
mod picture;
mod read;
mod run;
mod settings;
mod sums;

pub use comparison::{ComparedSteps, Comparison, OtherSetting, first_other_step};
pub use confusion::{Confusion, PredictionCount};
pub use error::{PictureError, ReportError, SvgError};
pub use image::{RunImage, SvgImage};
pub use mistake::{Mistake, MistakeEntry, PicturePath, PicturePathError};
pub use picture::Picture;
pub use read::Report;
pub use run::{Epoch, LossScaling, RunSummary, StageSummary, Step, TestScores};
pub use settings::{RunSettings, SettingsTable};
pub use sums::{ComparedSums, OtherSum, first_other_sum};
