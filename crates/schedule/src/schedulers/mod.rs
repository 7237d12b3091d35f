//! Schedulers make schedules: one rule a file.
//!
//! To add one, write its file (the scheduler and its [`Definition`]), declare it here, and add it to the
//! list in `rule.rs`. A definition that is not in the list is a warning.

mod building_block;
mod controllable_memory;
mod data_parallel;
mod gpipe;
mod interleaved;
mod one_forward_one_backward;
mod pipedream;
mod rule;
mod zero_bubble;
mod zero_bubble_v;

use std::fmt::Debug;

pub use controllable_memory::{VHalf, VMin, VOneForwardOneBackward};
pub use data_parallel::DataParallel;
pub use gpipe::GPipe;
pub use interleaved::Interleaved;
pub use one_forward_one_backward::OneForwardOneBackward;
pub use pipedream::{PipeDream, RoundRobin};
pub use rule::{Rule, UnknownRule, is_name};
pub use zero_bubble::{ZeroBubbleH1, ZeroBubbleH2};
pub use zero_bubble_v::ZeroBubbleV;

use crate::{Schedule, ScheduleError};

/// Makes a schedule for any number of stages and micro-batches.
///
/// ```
/// use stovepipe_schedule::{GPipe, Interleaved, Scheduler};
///
/// assert_eq!(GPipe.name(), "GPipe");
/// assert_eq!([GPipe.stages(3), Interleaved { chunks: 2 }.stages(3)], [3, 6]);
/// assert_eq!(GPipe.schedule(1, 2)?.to_string(), "0F0 0F1 0B0 0B1");
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
pub trait Scheduler: Debug + Send + Sync {
    /// The name in papers and tables.
    fn name(&self) -> &str;

    /// The number of stages for this number of workers: one each by default.
    fn stages(&self, workers: usize) -> usize {
        workers
    }

    /// Makes a schedule.
    ///
    /// # Errors
    ///
    /// If there is no schedule for these numbers. Zero stages or zero micro-batches always fail.
    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError>;
}

impl<S: Scheduler + ?Sized> Scheduler for Box<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn stages(&self, workers: usize) -> usize {
        (**self).stages(workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        (**self).schedule(stages, micro_batches)
    }
}

/// A fixed schedule has one number of stages and one of micro-batches. All others are errors.
impl Scheduler for Schedule {
    fn name(&self) -> &str {
        "fixed"
    }

    fn stages(&self, _: usize) -> usize {
        Schedule::stages(self)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        let own = (Schedule::stages(self), self.micro_batches());
        let asked = (stages, micro_batches);
        if asked == own {
            return Ok(self.clone());
        }
        Err(ScheduleError::Fixed { own, asked })
    }
}

/// Options of [`Rule::scheduler`]. Each rule reads those it takes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RuleOptions {
    /// Stages of each worker; see [`Rule::takes_chunks`].
    pub chunks: usize,
    /// Workers of each stage, one each if empty; see [`Rule::takes_replicas`].
    pub replicas: Vec<usize>,
    /// Micro-batches of each update, if the rule is [asynchronous](Rule::is_synchronous). None: as few as
    /// give each replica one.
    pub update_every: Option<usize>,
}

impl RuleOptions {
    /// No replicas, and the fewest micro-batches for each update.
    #[must_use]
    pub const fn with_chunks(chunks: usize) -> Self {
        Self {
            chunks,
            replicas: Vec::new(),
            update_every: None,
        }
    }
}

impl Default for RuleOptions {
    /// Two chunks, no replicas, and the fewest micro-batches for each update.
    fn default() -> Self {
        Self::with_chunks(2)
    }
}

/// All that [`Rule`] has to know about a rule.
struct Definition {
    /// In flags and files.
    name: &'static str,
    /// Other names that are read, too.
    aliases: &'static [&'static str],
    /// Whether weights change only between steps.
    synchronous: bool,
    takes_chunks: bool,
    takes_replicas: bool,
    /// Whether nothing but backward passes in halves sets it apart from 1F1B.
    needs_halves: bool,
    scheduler: fn(&RuleOptions) -> Box<dyn Scheduler>,
}

impl Definition {
    /// A synchronous rule that takes no options.
    const fn new(name: &'static str, scheduler: fn(&RuleOptions) -> Box<dyn Scheduler>) -> Self {
        Self {
            name,
            aliases: &[],
            synchronous: true,
            takes_chunks: false,
            takes_replicas: false,
            needs_halves: false,
            scheduler,
        }
    }
}
