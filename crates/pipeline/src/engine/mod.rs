//! Runs schedules on stages.
//!
//! `ARCHITECTURE.md` has the map of these files. How workers run a step together is the crate
//! `stovepipe-runtime`.

pub(crate) mod copies;
pub(crate) mod core;
pub(crate) mod deferred;
pub(crate) mod finite;
pub(crate) mod gradient_sums;
pub(crate) mod links;
pub(crate) mod message;
pub(crate) mod numbers;
pub(crate) mod panic;
pub(crate) mod parts;
pub(crate) mod pass_sums;
pub(crate) mod post;
pub(crate) mod processes;
pub(crate) mod record;
pub(crate) mod reduction;
pub(crate) mod report;
pub(crate) mod routes;
pub(crate) mod schedules;
pub(crate) mod seats;
pub(crate) mod shared;
pub(crate) mod skips;
pub(crate) mod stage;
pub(crate) mod statistics;
pub(crate) mod step;
pub(crate) mod tape;
pub(crate) mod transfer;
pub(crate) mod values;
pub(crate) mod versions;
pub(crate) mod window;
pub(crate) mod worker;
