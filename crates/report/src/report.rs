//! All that a page tells of a run.

use std::path::Path;

use crate::{
    error::ReportError,
    mistake::Mistake,
    page, read,
    run::{Epoch, Summary},
    settings::Settings,
    timeline::Timeline,
};

/// All that a page tells of a run. What is empty or none is left out of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The run's name.
    pub title: String,
    /// What it was asked for.
    pub settings: Settings,
    /// Its epochs in ascending order.
    pub epochs: Vec<Epoch>,
    /// What it came to; none if it was interrupted or is still under way.
    pub summary: Option<Summary>,
    /// One mini-batch as a picture.
    pub timeline: Option<Timeline>,
    /// What there is to say in words, such as a text that a language model wrote.
    pub remark: Option<String>,
    /// The worst mistakes, the worst one first.
    pub mistakes: Vec<Mistake>,
}

impl Report {
    /// Reads the folder of a run: `config.toml`, `metrics.jsonl`, `summary.json`, `timeline.svg`,
    /// `remark.txt`, and `mistakes.json` with its pictures. What is not there is left out, so the folder may
    /// be that of a run that was interrupted or is under way.
    ///
    /// In `metrics.jsonl`, an epoch that comes again, because the run was resumed before it, takes the place of
    /// the earlier one and of all that followed that. A last line that was cut off while it was written is left
    /// out.
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
    /// If the folder is none of a run, or a file in it cannot be read or does not hold what it
    /// should.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        read::run(folder)
    }

    /// The page: a whole HTML document that needs no other file, nor a network, nor scripts.
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
        page::of(self).into_string()
    }
}
