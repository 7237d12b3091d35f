//! Runs schedules on stages.
//!
//! A training step goes through these files, from top to bottom:
//!
//! | file | job |
//! |---|---|
//! | `api/train.rs` | splits the mini-batch, makes a task per stage, gathers the results |
//! | `step` | runs the schedule: one job per worker; explains failures |
//! | `stage` | one stage in one step: receives, runs passes, sends |
//! | `tape` | layers forward and backward; the graph is cut at every layer |
//! | `deferred` | backward passes in two halves: input gradients now, weight gradients later |
//! | `copies` | the copies of layers that a step works on |
//! | `statistics` | running statistics, updated once per mini-batch |
//! | `links` | mailboxes between stages: values, gradients, skips |
//! | `transfer` | threads that copy what stages send between devices |
//! | `skips` | which skips a stage sends and takes |
//! | `record` | what happened when, for timelines and errors |
//! | `values` | operations on any flow: move, cast, detach, seed, join |
//! | `finite` | finds values that are NaN or infinite |
//!
//! Beside it: `core` holds what lives as long as a pipeline, `schedules` checks and keeps schedules,
//! `worker` starts worker threads, `panic` turns panics into errors. How workers run a step together
//! is the crate `stovepipe-runtime`.

pub(crate) mod copies;
pub(crate) mod core;
pub(crate) mod deferred;
pub(crate) mod finite;
pub(crate) mod links;
pub(crate) mod panic;
pub(crate) mod record;
pub(crate) mod schedules;
pub(crate) mod skips;
pub(crate) mod stage;
pub(crate) mod statistics;
pub(crate) mod step;
pub(crate) mod tape;
pub(crate) mod transfer;
pub(crate) mod values;
pub(crate) mod worker;
