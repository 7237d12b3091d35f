//! The contents of a report.

use std::path::Path;

use crate::{
    error::ReportError,
    mistake::Mistake,
    page, read,
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

impl Report {
    /// Reads the folder of a run. Missing files are left out, so the run may have been interrupted or
    /// may still be running.
    ///
    /// If `metrics.jsonl` has an epoch again, because the run was resumed before it, the new line
    /// replaces the old one and all after that. An incomplete last line is ignored.
    ///
    /// ```
    /// # let parent = tempfile::tempdir().unwrap();
    /// # let folder = parent.path().join("train-1");
    /// use std::fs;
    /// use stovepipe_report::Report;
    ///
    /// fs::create_dir(&folder)?;
    /// fs::write(folder.join("config.toml"), "[training]\nepochs = 8")?;
    /// let report = Report::read(&folder)?;
    /// assert_eq!(report.title, "train-1");
    /// fs::write(folder.join("report.html"), report.to_html())?;
    ///
    /// fs::write(folder.join("config.toml"), "[training]\nepochs = = 8")?;
    /// let error = Report::read(&folder).unwrap_err().to_string();
    /// assert!(error.contains("config.toml, line 2"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not the folder of a run, or a file in it is unreadable or malformed.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        read::run(folder)
    }

    /// The page: a whole HTML document that needs no other file, no network and no scripts.
    ///
    /// ```
    /// use stovepipe_report::Report;
    ///
    /// let report = Report { title: "A <b>run</b>".into(), ..Report::default() };
    /// let page = report.to_html();
    /// assert!(page.starts_with("<!DOCTYPE html>"));
    /// assert!(page.contains("A &lt;b&gt;run&lt;/b&gt;"));
    /// ```
    #[must_use]
    pub fn to_html(&self) -> String {
        page::render(self).into_string()
    }
}
