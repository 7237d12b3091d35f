//! What the benchmarks share. Each program in `bin/` measures one thing; see there.
//!
//! ```text
//! arguments    the flags that all programs have
//! models       the models that are measured: AmoebaNet-D and a stack of Transformer layers
//! recipe       how such a model is made, its sizes and its batches
//! measured     what can be asked of a model
//! measure      turns taken in rounds, medians and spreads
//! plain        a training loop as Burn's users write it, and independent copies of it at once
//! piped        the same work through a pipeline
//! agreement    what other devices compute, next to the CPU
//! layers       what each layer costs, and the best cut in two
//! limit        how fast a schedule could be at best
//! account      where the time of a step went
//! boundary     what crosses a cut
//! memory       what a step allocates
//! footprint    how large a network trains within a budget
//! peer         PyTorch beside us
//! pace         how far a program is
//! learning     losses of a short training, and curves, a drawing of them
//! report       tables, printed and saved
//! ```

pub mod account;
pub mod agreement;
pub mod arguments;
pub mod boundary;
pub mod classifier;
pub mod contender;
pub mod copies;
pub mod curves;
mod drawing;
mod failure;
pub mod flows;
pub mod footprint;
pub mod layers;
pub mod learning;
pub mod limit;
pub mod machine;
pub mod measure;
pub mod measured;
pub mod memory;
pub mod models;
pub mod pace;
pub mod peer;
pub mod piped;
pub mod plain;
pub mod recipe;
pub mod report;
pub mod threads;
pub mod transformer;

pub use failure::Failure;
