//! What was found.

use std::fmt;

use crate::{
    case::Case,
    seen::{Difference, Seen},
};

/// What a [`Verifier`](crate::Verifier) found: a table of checks.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a report that nobody reads proves nothing"]
pub struct Report {
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
}

/// One thing that was compared, in many cases.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What should hold.
    pub name: &'static str,
    /// What was compared with what.
    pub compared: String,
    /// In how many cases.
    pub cases: usize,
    /// The largest relative difference that was found; 0 where the bits are the same.
    pub largest: f64,
    /// The largest that is allowed; 0 for the same bits.
    pub allowed: f64,
    /// Where the largest difference is, if there is one.
    pub place: Option<String>,
    /// What came of it.
    pub verdict: Verdict,
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not; and what that may come from, or what went wrong.
    Fails(String),
    /// There is nothing to compare, and why.
    Skipped(String),
}

impl Report {
    /// Whether all that could be checked holds.
    ///
    /// ```
    /// assert!(stovepipe_verify::Report::default().holds()); // nothing was checked
    /// ```
    #[must_use]
    pub fn holds(&self) -> bool {
        let fails = |check: &Check| matches!(check.verdict, Verdict::Fails(_));
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
            verdict: Verdict::Holds,
        }
    }

    /// Counts a case in which a difference was found, or none.
    pub(crate) fn case(&mut self, size: f64, place: impl FnOnce() -> String) {
        self.cases += 1;
        if size > self.largest {
            self.largest = size;
            self.place = Some(place());
        }
    }

    /// Counts a case in which two things were seen, or could not be.
    pub(crate) fn compare(
        &mut self,
        case: &Case,
        (found, expected): (Result<&Seen, &String>, Result<&Seen, &String>),
        difference: impl FnOnce(&Seen, &Seen) -> Difference,
    ) {
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let Difference { size, place } = difference(found, expected);
                self.case(size, || format!("{} ({case})", place.unwrap_or_default()));
            }
            (Err(why), _) => self.failed(format!("{case}: {why}")),
            (_, Err(why)) => self.failed(format!("{case}, to compare with: {why}")),
        }
    }

    /// Counts a case that could not be run, or went wrong in a way that no number says.
    pub(crate) fn failed(&mut self, why: String) {
        self.cases += 1;
        if self.verdict == Verdict::Holds {
            self.verdict = Verdict::Fails(why);
        }
    }

    pub(crate) fn skipped(mut self, why: &str) -> Self {
        self.verdict = Verdict::Skipped(why.to_owned());
        self
    }

    /// Judges; `hint` says what a difference that is too large may come from.
    pub(crate) fn judged(mut self, hint: &str) -> Self {
        if self.cases == 0 && self.verdict == Verdict::Holds {
            let why = "there was nothing to compare: name numbers of stages and micro-batches that \
                       the model can be cut into";
            self.verdict = Verdict::Fails(why.to_owned());
        }
        if self.verdict == Verdict::Holds && self.largest > self.allowed {
            self.verdict = Verdict::Fails(hint.to_owned());
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

impl fmt::Display for Verdict {
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
        let head = [
            "check",
            "compared",
            "cases",
            "largest difference",
            "allowed",
            "",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.checks.iter().map(|check| {
            [
                check.name.to_owned(),
                check.compared.clone(),
                check.cases.to_string(),
                check.largest(),
                check.allowed(),
                check.verdict.to_string(),
            ]
        }));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<_> = (0..head.len())
            .map(|column| width(column).unwrap_or(0))
            .collect();
        for row in &rows {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for check in &self.checks {
            let name = check.name;
            if let Some(place) = &check.place {
                writeln!(f, "\n{name}: the largest difference is in {place}")?;
            }
            match &check.verdict {
                Verdict::Fails(why) => writeln!(f, "\n{name} FAILS: {why}")?,
                Verdict::Skipped(why) => writeln!(f, "\n{name} was skipped: {why}")?,
                Verdict::Holds => {}
            }
        }
        Ok(())
    }
}
