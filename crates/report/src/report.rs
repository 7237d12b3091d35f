//! The contents of a report.

use crate::{
    mistake::Mistake,
    run::{Epoch, RunSummary},
    settings::RunSettings,
    timeline::TimelineImage,
};

/// The contents of a report. The page leaves out what is empty or `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The run's name.
    pub title: String,
    /// The run's settings.
    pub settings: RunSettings,
    /// Its epochs in ascending order.
    pub epochs: Vec<Epoch>,
    /// Its results; `None` if it was interrupted or is still running.
    pub summary: Option<RunSummary>,
    /// The timeline of a mini-batch.
    pub timeline: Option<TimelineImage>,
    /// A text, such as a language model's sample.
    pub remark: Option<String>,
    /// The worst mistakes, the worst one first.
    pub mistakes: Vec<Mistake>,
}
