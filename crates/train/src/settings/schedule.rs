//! Schedules as flags and configuration files name them.

use std::{fmt, fs, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::check_schedule;
use stovepipe_schedule::{DataParallel, Rule, RuleOptions, Schedule, Scheduler};

use super::value::{ValueError, as_text};
use crate::error::TrainError;

/// The order of passes: a rule by name, or a file that lists all actions.
///
/// ```
/// use stovepipe_schedule::Rule;
/// use stovepipe_train::settings::ScheduleSetting;
///
/// assert_eq!("zb-h1".parse(), Ok(ScheduleSetting::Rule(Rule::ZeroBubbleH1)));
/// assert_eq!("mine.csv".parse(), Ok(ScheduleSetting::File("mine.csv".into())));
/// assert!("zb-h3".parse::<ScheduleSetting>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ScheduleSetting {
    /// A rule, which has a schedule for any number of workers and micro-batches.
    Rule(Rule),
    /// A schedule in the CSV format of `torch.distributed.pipelining`; see [`Schedule::from_csv`].
    File(PathBuf),
}

impl ScheduleSetting {
    /// Whether weights change before all devices have finished a mini-batch.
    #[must_use]
    pub fn is_asynchronous(&self) -> bool {
        matches!(self, Self::Rule(rule) if !rule.is_synchronous())
    }

    /// The scheduler. One number of replicas is that of whole pipelines, which have `shares`: none for
    /// equal ones.
    pub(super) fn scheduler(
        &self,
        options: RuleOptions,
        shares: &[usize],
        workers: usize,
        micro_batches: usize,
    ) -> Result<Box<dyn Scheduler>, TrainError> {
        let path = match self {
            Self::Rule(rule) if !rule.is_synchronous() => {
                // A single 1 is that of all stages.
                let replicas = options.replicas.clone();
                let replicas = if replicas == [1] {
                    Vec::new()
                } else {
                    replicas
                };
                let options = RuleOptions {
                    replicas,
                    ..options
                };
                return Ok(rule.scheduler(&options));
            }
            Self::Rule(rule) => {
                let of_one = || rule.scheduler(&RuleOptions::with_chunks(options.chunks));
                return Ok(match options.replicas[..] {
                    [] | [1] => of_one(),
                    [replicas] if shares.is_empty() => {
                        Box::new(DataParallel::equal(of_one(), replicas))
                    }
                    [_] => Box::new(DataParallel {
                        scheduler: of_one(),
                        shares: shares.to_vec(),
                    }),
                    _ => rule.scheduler(&options),
                });
            }
            Self::File(path) => path,
        };
        let text = fs::read_to_string(path).map_err(TrainError::file(path))?;
        let schedule =
            Schedule::from_csv(&text).map_err(|error| TrainError::format(path, error))?;
        let own = (schedule.workers().len(), schedule.micro_batches());
        if own != (workers, micro_batches) {
            return Err(TrainError::ScheduleNumbers {
                path: path.clone(),
                workers: own.0,
                micro_batches: own.1,
            });
        }
        if schedule.is_asynchronous() {
            let path = path.clone();
            return Err(TrainError::AsynchronousFile(path));
        }
        check_schedule(&schedule, workers).map_err(|error| TrainError::format(path, error))?;
        Ok(Box::new(schedule))
    }
}

impl FromStr for ScheduleSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse::<Rule>() {
            Ok(rule) => Ok(Self::Rule(rule)),
            // A misspelt rule is not a file.
            Err(_) if text.to_ascii_lowercase().ends_with(".csv") => Ok(Self::File(text.into())),
            Err(_) => {
                let rules: Vec<_> = Rule::ALL.into_iter().map(Rule::name).collect();
                Err(ValueError::Schedule(text.to_owned(), rules.join(", ")))
            }
        }
    }
}

impl fmt::Display for ScheduleSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

as_text!(ScheduleSetting);
