//! Code that the benchmarks share. Each program in `bin/` measures one thing.
//!
//! A function that returns a [`Failure`] fails if a model, a file, a device or a child process does.
//!
//! ```text
//! arguments       flags of several programs
//! models          the measured models: AmoebaNet-D and a stack of Transformer layers
//! recipe          how such a model is made, its sizes and its batches
//! bench_model     a model for any kind of layer
//! measure         turns in rounds, medians and spreads
//! contender       a configuration in its own process
//! plain, copies   a plain Burn loop, and independent copies of it at once
//! piped           training through a pipeline
//! ranks           the same over links of a given speed, between threads
//! agreement       the results of other devices next to the CPU's
//! layers          the cost of each layer, the best cut in two, and what crosses a cut
//! load            other load on the machine, on purpose
//! limit           the limit of a schedule's speed
//! step_times      where the time of a step went
//! memory          the memory of a step
//! footprint       the largest network that trains within a budget
//! peer            PyTorch next to us
//! products        the rate of matrix products alone
//! learning        losses of a short training
//! curves          a drawing of them
//! bench_progress  the progress of a program
//! report          tables, printed and saved
//! sweep           a table for each model and number of micro-batches
//! ```

#![allow(missing_docs, reason = "only the programs here use these items")]

pub mod agreement;
pub mod arguments;
pub mod bench_model;
pub mod bench_progress;
pub mod contender;
pub mod copies;
pub mod curves;
mod drawing;
mod failure;
pub mod flows;
pub mod footprint;
pub mod job;
pub mod layers;
pub mod learning;
pub mod limit;
pub mod line_process;
pub mod load;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod models;
pub mod peer;
pub mod piped;
pub mod plain;
pub mod products;
pub mod ranks;
pub mod recipe;
pub mod report;
pub mod step_times;
pub mod sweep;
pub mod transformer;

pub use failure::Failure;
