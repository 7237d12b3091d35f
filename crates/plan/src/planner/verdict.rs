//! Which candidate is best, and why the others are not.

use std::fmt;

use serde::Serialize;
use stovepipe_schedule::format_bytes;

use super::{Candidate, Plan, PlanError, shape};
use crate::{Forecast, Machine};

/// A candidate that is not the best.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunnerUp {
    /// The candidate.
    pub candidate: Candidate,
    /// Why it lost.
    pub verdict: Verdict,
}

/// Why a candidate is not the best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A device is too small.
    TooLarge {
        /// The worker.
        worker: usize,
        /// Bytes that it would need.
        needs: u64,
        /// Bytes that its device has.
        has: u64,
    },
    /// It takes as long.
    Equal,
    /// It runs more passes a second time.
    Recomputes {
        /// How many times as long a step takes.
        factor: f64,
    },
    /// Its workers wait more.
    Waits {
        /// How many times as long a step takes.
        factor: f64,
        /// The share of time in which workers wait.
        bubble: f64,
        /// That of the best candidate.
        best: f64,
    },
    /// Its workers have more to do each: there are fewer of them, or more small passes.
    Works {
        /// How many times as long a step takes.
        factor: f64,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |factor: f64| 100.0 * (factor - 1.0);
        match *self {
            Self::TooLarge { worker, needs, has } => write!(
                formatter,
                "does not fit: worker {worker} needs {} of {}",
                format_bytes(needs),
                format_bytes(has)
            ),
            Self::Equal => formatter.write_str("as fast, but computes or keeps no less"),
            Self::Recomputes { factor } => write!(
                formatter,
                "{:.1} % slower: computes more passes twice",
                percent(factor)
            ),
            Self::Waits {
                factor,
                bubble,
                best,
            } => write!(
                formatter,
                "{:.1} % slower: waits {:.1} % of the time, not {:.1} %",
                percent(factor),
                100.0 * bubble,
                100.0 * best
            ),
            Self::Works { factor } => write!(
                formatter,
                "{:.1} % slower: more to do for each worker",
                percent(factor)
            ),
        }
    }
}

/// Chooses the best of those that fit.
pub(super) fn conclude(
    machine: &Machine,
    mut fitting: Vec<Candidate>,
    misfits: Vec<Candidate>,
    exact: bool,
) -> Result<Plan, PlanError> {
    // Of equals, the one that computes less, then the one that keeps less, then the first of the list.
    let memory = |forecast: &Forecast| forecast.memory.iter().map(|m| m.total()).max();
    fitting.sort_by(|a, b| {
        let (a, b) = (&a.forecast, &b.forecast);
        (a.step_time.total_cmp(&b.step_time))
            .then(a.recomputed.total_cmp(&b.recomputed))
            .then(memory(a).cmp(&memory(b)))
    });
    let mut fitting = fitting.into_iter();
    let misfit =
        |candidate: &Candidate| shape::misfit(machine, &candidate.devices, &candidate.forecast);
    let Some(best) = fitting.next() else {
        let misfits = misfits.iter().filter_map(misfit);
        return Err(
            match misfits.min_by(|a, b| a.factor().total_cmp(&b.factor())) {
                Some(shape::Misfit { worker, needs, has }) => {
                    PlanError::TooLarge { worker, needs, has }
                }
                None => PlanError::Nothing("schedule for so few layers"),
            },
        );
    };
    let slower = fitting.map(|candidate| {
        let verdict = compare(&candidate, &best);
        RunnerUp { candidate, verdict }
    });
    let too_large = misfits.into_iter().filter_map(|candidate| {
        let shape::Misfit { worker, needs, has } = misfit(&candidate)?;
        let verdict = Verdict::TooLarge { worker, needs, has };
        Some(RunnerUp { candidate, verdict })
    });
    Ok(Plan {
        runners_up: slower.chain(too_large).collect(),
        best,
        exact,
    })
}

fn compare(candidate: &Candidate, best: &Candidate) -> Verdict {
    let (candidate, best) = (&candidate.forecast, &best.forecast);
    let more = candidate.step_time - best.step_time;
    if more <= 1e-9 * best.step_time {
        return Verdict::Equal;
    }
    let factor = candidate.step_time / best.step_time;
    let waited = |forecast: &Forecast| forecast.bubble * forecast.step_time;
    let recomputed = candidate.recomputed - best.recomputed;
    let waits = waited(candidate) - waited(best);
    let works = more - waits - recomputed.max(0.0);
    if recomputed >= waits && recomputed >= works {
        Verdict::Recomputes { factor }
    } else if waits >= works {
        Verdict::Waits {
            factor,
            bubble: candidate.bubble,
            best: best.bubble,
        }
    } else {
        Verdict::Works { factor }
    }
}
