//! Compares candidates: which is best, and why the others are not.

use std::fmt;

use serde::Serialize;
use stovepipe_schedule::format_bytes;

use super::{Candidate, Forecast, PlanError, shape};
use crate::Machine;

/// The best pipeline, and what it was chosen from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The fastest candidate that fits.
    pub best: Candidate,
    /// The best of each other schedule and recompute mode, the fastest first.
    pub runners_up: Vec<RunnerUp>,
    /// Whether no other candidate can be faster: all cuts of all shapes were considered (of unequal
    /// shares, only those by the speeds of devices). If not, there
    /// were too many, and some shapes were tried with few cuts.
    pub exact: bool,
}

/// A candidate that is not the best.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunnerUp {
    /// The candidate.
    pub candidate: Candidate,
    /// Why it is not the best.
    pub verdict: Verdict,
}

/// Why a candidate is not the best. `factor` is its step time, relative to the best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the variants say what the fields are")]
pub enum Verdict {
    /// A worker needs more bytes than its device has.
    TooLarge { worker: usize, needs: u64, has: u64 },
    /// It is as fast.
    Equal,
    /// It recomputes more passes.
    Recomputes { factor: f64 },
    /// Its workers wait more: this bubble is larger than that of the best candidate.
    Waits { factor: f64, bubble: f64, best: f64 },
    /// Its workers have more work each: there are fewer of them, or more small passes.
    Works { factor: f64 },
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slower = |factor: f64| format!("{:.1} % slower", 100.0 * (factor - 1.0));
        match *self {
            Self::TooLarge { worker, needs, has } => {
                let [needs, has] = [needs, has].map(format_bytes);
                let reason = format!("worker {worker} needs {needs} of {has}");
                write!(formatter, "does not fit: {reason}")
            }
            Self::Equal => formatter.write_str("as fast, but does not compute or keep less"),
            Self::Recomputes { factor } => {
                write!(formatter, "{}: computes more passes twice", slower(factor))
            }
            Self::Waits {
                factor,
                bubble,
                best,
            } => {
                let [bubble, best] = [bubble, best].map(|share| 100.0 * share);
                let waits = format!("waits {bubble:.1} % of the time, not {best:.1} %");
                write!(formatter, "{}: {waits}", slower(factor))
            }
            Self::Works { factor } => {
                write!(formatter, "{}: more work for each worker", slower(factor))
            }
        }
    }
}

/// Chooses the best candidate that fits.
pub(super) fn conclude(
    machine: &Machine,
    mut fitting: Vec<Candidate>,
    misfits: Vec<Candidate>,
    exact: bool,
) -> Result<Plan, PlanError> {
    // Of equals, the one that recomputes less, then the one that keeps less, then the first.
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
        let closest = misfits.min_by(|a, b| a.factor().total_cmp(&b.factor()));
        let nothing = PlanError::Nothing("schedule for so few layers");
        return Err(closest.map_or(nothing, |misfit| {
            let shape::Misfit { worker, needs, has } = misfit;
            PlanError::TooLarge { worker, needs, has }
        }));
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
