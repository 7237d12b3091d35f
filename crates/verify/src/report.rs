//! The results of a verification.

use std::fmt;

use stovepipe_pipeline::error::ProcessError;

use crate::{
    case::CaseError,
    processes::{Failure, Processes},
    snapshot::{Difference, Snapshot},
};

/// The results of a [`Verifier`](crate::Verifier). It prints as a table of checks.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "read the report: `holds` says whether all checks hold"]
pub struct Report {
    /// The checks, in the order in which they ran.
    pub checks: Vec<Check>,
}

/// One claim, compared in many cases.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What was compared with what.
    pub compared: String,
    /// The number of cases.
    pub cases: usize,
    /// The largest relative difference; 0 if all bits are the same.
    pub largest: f64,
    /// The largest that is allowed; 0 for the same bits.
    pub allowed: f64,
    /// Where the largest difference is, if there is one.
    pub place: Option<String>,
    /// The result.
    pub verdict: Outcome,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It does not hold, and a likely cause.
    Fails(String),
    /// There is nothing to compare, and why.
    Skipped(String),
}

impl Report {
    /// Whether no check fails.
    ///
    /// ```
    /// assert!(stovepipe_verify::Report::default().holds()); // nothing was checked
    /// ```
    #[must_use]
    pub fn holds(&self) -> bool {
        let fails = |check: &Check| matches!(check.verdict, Outcome::Fails(_));
        !self.checks.iter().any(fails)
    }
}

impl Check {
    pub(crate) fn new(name: &'static str, compared: impl Into<String>, allowed: f64) -> Self {
        Self {
            name,
            compared: compared.into(),
            cases: 0,
            largest: 0.0,
            allowed,
            place: None,
            verdict: Outcome::Holds,
        }
    }

    /// Counts a case with a difference, which may be 0.
    pub(crate) fn case(&mut self, size: f64, place: impl FnOnce() -> String) {
        self.cases += 1;
        if size > self.largest {
            self.largest = size;
            self.place = Some(place());
        }
    }

    /// Counts a case, by the difference between two snapshots in any process.
    pub(crate) fn compare(
        &mut self,
        processes: &Processes,
        case: &impl fmt::Display,
        found: &Result<Snapshot, CaseError>,
        expected: &Result<Snapshot, CaseError>,
    ) -> Result<(), ProcessError> {
        let own = match (found, expected) {
            (Ok(found), Ok(expected)) => Ok(found.compare(expected, self.allowed == 0.0)),
            (Err(error), _) => Err(Failure {
                reason: error.to_string(),
                is_of_other: error.is_of_other(),
            }),
            (_, Err(error)) => Err(Failure {
                reason: format!("what it is compared with: {error}"),
                is_of_other: false,
            }),
        };
        match processes.join(own)? {
            Ok(Difference { size, place }) => self.case(size, || format!("{place} ({case})")),
            Err(reason) => self.failed(format!("{case}: {reason}")),
        }
        Ok(())
    }

    pub(crate) fn failed(&mut self, why: String) {
        self.cases += 1;
        if self.verdict == Outcome::Holds {
            self.verdict = Outcome::Fails(why);
        }
    }

    pub(crate) fn skipped(mut self, why: &str) -> Self {
        self.verdict = Outcome::Skipped(why.to_owned());
        self
    }

    /// Sets the verdict. `cause` is the likely cause of a difference that is too large.
    pub(crate) fn finished(mut self, cause: &str) -> Self {
        if self.verdict == Outcome::Holds && self.cases == 0 {
            let why = "there was nothing to compare: name numbers of stages and micro-batches that \
                       the model can be cut into";
            self.verdict = Outcome::Fails(why.to_owned());
        } else if self.verdict == Outcome::Holds && self.largest > self.allowed {
            self.verdict = Outcome::Fails(cause.to_owned());
        }
        self
    }

    fn largest(&self) -> String {
        match self.cases {
            0 => "–".to_owned(),
            _ if self.largest == 0.0 => "none".to_owned(),
            _ => format!("{:.1e}", self.largest),
        }
    }

    fn allowed(&self) -> String {
        match self.allowed {
            0.0 => "none".to_owned(),
            allowed => format!("{allowed:.0e}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::Fails(_) => "FAILS",
            Self::Skipped(_) => "skipped",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = "check,compared,cases,largest difference,allowed,";
        let head: Vec<_> = head.split(',').map(str::to_owned).collect();
        let mut rows = vec![head];
        rows.extend(self.checks.iter().map(|check| {
            vec![
                check.name.to_owned(),
                check.compared.clone(),
                check.cases.to_string(),
                check.largest(),
                check.allowed(),
                check.verdict.to_string(),
            ]
        }));
        let widths: Vec<_> = (0..rows[0].len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max())
            .collect();
        for row in &rows {
            let cells = row.iter().zip(widths.iter().flatten());
            let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}", line.trim_end())?;
        }
        for check in &self.checks {
            let name = check.name;
            if let Some(place) = &check.place {
                writeln!(f, "\n{name}: the largest difference is in {place}")?;
            }
            match &check.verdict {
                Outcome::Fails(why) => writeln!(f, "\n{name} FAILS: {why}")?,
                Outcome::Skipped(why) => writeln!(f, "\n{name} was skipped: {why}")?,
                Outcome::Holds => {}
            }
        }
        Ok(())
    }
}
