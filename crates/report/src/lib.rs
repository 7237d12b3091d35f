//! A page about a training run: one file of HTML that needs no other, made from the files in the run's
//! folder.
//!
//! [`Report::read`] gathers what a run has left, and [`Report::to_html`] makes the page: what the run came to,
//! curves, the worst mistakes with their pictures or a text that the model wrote, the timeline of a
//! mini-batch, stages and settings. It can be made again at any time, of a run that was interrupted, too:
//! what is not there is left out.
//!
//! | file | what the page has of it |
//! |---|---|
//! | `config.toml` | the settings |
//! | `metrics.jsonl` | the curves, and a table of their numbers |
//! | `summary.json` | the numbers at the top, and the stages |
//! | `timeline.svg` | the picture of a mini-batch |
//! | `remark.txt` | the text |
//! | `mistakes.json` | the worst mistakes: a list of [`MistakeEntry`], with pictures beside it |
//!
//! The page runs no scripts and loads nothing. It is made for phones and paper, too, for dark and light
//! screens, and for those who read it with their ears.
//!
//! ```
//! use stovepipe_report::{Epoch, Report, Scores};
//!
//! let scores = |loss, accuracy| Scores { loss, accuracy, top5: 1.0, perplexity: None };
//! let epoch = |epoch, loss, accuracy| Epoch {
//!     epoch,
//!     train_loss: loss,
//!     test: scores(loss, accuracy),
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
mod error;
mod mistake;
mod number;
mod page;
mod picture;
mod read;
mod report;
mod run;
mod settings;
mod timeline;

pub use error::{ReportError, WrongDrawing, WrongPicture};
pub use mistake::{Mistake, MistakeEntry, PicturePath};
pub use picture::Picture;
pub use report::Report;
pub use run::{Epoch, LossScale, Scores, Stage, Summary};
pub use settings::{Settings, SettingsTable};
pub use timeline::{Drawing, Timeline};
