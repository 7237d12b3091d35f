//! Schedules of pipeline-parallel training: who does what when, what it costs, and pictures of it.
//!
//! A network that is too big or too slow for one device is cut into consecutive *stages*. Each stage
//! belongs to a *worker*, or to several replicas. A mini-batch is cut into *micro-batches*, and the
//! stages work on different micro-batches at the same time. A [`Schedule`] lists the [`Action`]s of
//! each worker in order. This crate knows nothing of tensors.
//!
//! * **Make** a schedule with a [`Scheduler`], your own or one of the [`Rule`]s, or read one from text
//!   or [a file](Schedule::from_csv).
//! * **Check** it: [`Schedule::new`] accepts only schedules that can run to their end.
//!   [`Schedule::check`] compares one with [`Limits`].
//! * **Predict** its cost: [`Schedule::simulate`] simulates a step from the [`Costs`] of each stage and
//!   link. A [`Simulation`] has the step's time, bubble, memory and critical path.
//! * **Look** at it: a [`Timeline`] says what happened when, in a simulation or a measured step. It
//!   draws itself [for a page](Timeline::to_svg), [for a terminal](Timeline::to_text), and
//!   [for Perfetto](Timeline::to_chrome_trace).
//!
//! ```
//! use stovepipe_schedule::{Costs, OneForwardOneBackward, Scheduler};
//!
//! let schedule = OneForwardOneBackward.schedule(2, 2)?;
//! assert_eq!(schedule.to_string(), "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1");
//! // Seconds of a forward pass, and of the two halves of a backward pass.
//! let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
//! let simulation = schedule.simulate(&costs)?;
//! assert_eq!(simulation.bubble(), 1.0 / 3.0); // (p − 1) / (m + p − 1)
//! println!("{}", simulation.timeline().to_text(80, false));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod chrome_trace;
mod costs;
mod csv;
mod error;
mod held;
mod program;
mod recompute;
mod replay;
mod schedule;
mod schedulers;
mod segments;
mod simulate;
mod summary;
mod svg;
mod table;
mod text;
mod timeline;
mod validate;
mod versions;

pub use action::{Action, ParseActionError, Pass};
pub use costs::{Bucket, CostError, Costs, Link, SkipCosts, StageCosts, StageMemory};
pub use error::{LineError, ScheduleError, Waiting};
pub use held::Limits;
pub use program::{Content, Instruction, Message, Program, ProgramError, Wiring};
pub use recompute::{Recompute, UnknownRecompute};
pub use schedule::Schedule;
pub use schedulers::*;
pub use segments::{Segments, SegmentsError};
pub use simulate::{HeldBytes, MemoryAt, Simulation};
pub use summary::{count, format_bytes};
pub use timeline::{Span, SpanKind, Timeline};
pub use versions::{VersionUse, Versions, WeightPolicy};
