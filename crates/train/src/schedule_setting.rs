//! Schedules as flags and configurations name them.

use std::{fmt, fs, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::check_schedule;
use stovepipe_schedule::{Rule, RuleOptions, Schedule, Scheduler};

use crate::error::TrainError;

/// Who does what when: a rule by name, or a file that lists all actions.
///
/// ```
/// use stovepipe_schedule::Rule;
/// use stovepipe_train::ScheduleSetting;
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
    /// The scheduler, for so many workers and micro-batches. `chunks` are the stages of each worker,
    /// which matters to `interleaved` alone.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, holds no schedule or one that cannot be run, or is for other
    /// numbers.
    pub(crate) fn scheduler(
        &self,
        chunks: usize,
        workers: usize,
        micro_batches: usize,
    ) -> Result<Box<dyn Scheduler>, TrainError> {
        let path = match self {
            Self::Rule(rule) => return Ok(rule.scheduler(&RuleOptions::with_chunks(chunks))),
            Self::File(path) => path,
        };
        let text = fs::read_to_string(path).map_err(TrainError::file(path))?;
        let schedule = Schedule::from_csv(&text).map_err(|source| TrainError::Schedule {
            path: path.clone(),
            source,
        })?;
        let own = (schedule.workers().len(), schedule.micro_batches());
        if own != (workers, micro_batches) {
            return Err(TrainError::ScheduleNumbers {
                path: path.clone(),
                workers: own.0,
                micro_batches: own.1,
            });
        }
        check_schedule(&schedule, workers).map_err(|source| TrainError::WrongSchedule {
            path: path.clone(),
            source,
        })?;
        Ok(Box::new(schedule))
    }
}

impl FromStr for ScheduleSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Rule>() {
            Ok(rule) if !rule.is_synchronous() => Err(format!(
                "`{rule}` changes weights after each micro-batch, and training here once after each \
                 mini-batch: use 1f1b, whose order of passes it has"
            )),
            Ok(rule) => Ok(Self::Rule(rule)),
            Err(_) if is_path(text) => Ok(Self::File(text.into())),
            Err(_) => {
                let names: Vec<_> = Rule::synchronous().map(Rule::name).collect();
                let names = names.join(", ");
                Err(format!(
                    "`{text}` is no schedule: use {names}, or a file's path that ends with .csv"
                ))
            }
        }
    }
}

/// A rule that is misspelt should not be looked for as a file.
fn is_path(text: &str) -> bool {
    text.to_ascii_lowercase().ends_with(".csv")
}

impl fmt::Display for ScheduleSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl TryFrom<String> for ScheduleSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ScheduleSetting> for String {
    fn from(schedule: ScheduleSetting) -> Self {
        schedule.to_string()
    }
}
