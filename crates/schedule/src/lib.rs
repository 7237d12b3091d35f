//! Schedules of pipeline-parallel training, and pictures of what they cost.
//!
//! A network too big or too slow for one device is cut into consecutive *stages*. Each stage
//! belongs to a *worker*, a batch is cut into *micro-batches*, and the stages work on different
//! micro-batches at the same time. This crate decides nothing but the order: a [`Schedule`] lists,
//! for each worker, its [`Action`]s one after the other. It runs no tensor code, so every
//! property of an order can be tested on its own.
//!
//! * [`GPipe`] and [`OneForwardOneBackward`] are the two [`Scheduler`]s; write a third by
//!   implementing the trait, or write a single schedule by hand.
//! * [`Schedule::new`] checks what it is given, so a `Schedule` that exists can be run to its
//!   end: nothing missing, nothing twice, no deadlock.
//! * A [`Timeline`] says what happened when, measured in a real step or foretold by
//!   [`Schedule::timeline`]. It knows its bubble, the share of time in which workers waited, and
//!   draws itself as SVG or as a trace for Perfetto.
//!
//! ```
//! use std::time::Duration;
//! use stovepipe_schedule::{OneForwardOneBackward, Scheduler};
//!
//! let schedule = OneForwardOneBackward.schedule(2, 4)?;
//! assert_eq!(
//!     schedule.to_string(),
//!     "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n\
//!      1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"
//! );
//! assert_eq!(schedule.peak_in_flight(), [2, 1]);
//!
//! let timeline = schedule.timeline(Duration::from_millis(1), Duration::from_millis(2));
//! assert!((timeline.bubble() - 1.0 / 5.0).abs() < 1e-9); // (p − 1) / (m + p − 1)
//! let picture = timeline.to_svg(&["stage 0".into(), "stage 1".into()]);
//! assert!(picture.starts_with("<svg"));
//! # Ok::<(), stovepipe_schedule::ScheduleError>(())
//! ```

mod action;
mod chrome_trace;
mod costs;
mod csv;
mod error;
mod grid;
mod held;
mod passes;
mod program;
mod recompute;
mod replay;
mod schedule;
mod schedulers;
mod simulate;
mod svg;
mod table;
mod timeline;
mod validate;
mod versions;

pub use action::{Action, ParseActionError, Pass};
pub use costs::{CostError, Costs, Link, StageCosts, StageMemory};
pub use error::{ScheduleError, Waiting};
pub use held::Limits;
pub use program::{Content, Message, Program, ProgramError, Step, Wiring};
pub use recompute::{Recompute, UnknownRecompute};
pub use schedule::Schedule;
pub use schedulers::{
    GPipe, Interleaved, OneForwardOneBackward, PipeDream, RoundRobin, Rule, Scheduler, UnknownRule,
    ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV,
};
pub use simulate::Simulation;
pub use timeline::{Span, SpanKind, Timeline};
