//! Checks on your own model and data that a pipeline changes nothing but the speed.
//!
//! [`Verifier`] trains a model for two steps, with an evaluation after each, for many numbers of stages,
//! schedules, modes of recomputation and numbers of micro-batches. It compares losses, gradients, running
//! statistics and outputs with each other, bit for bit, and with those that Burn alone computes for the
//! whole model. Asynchronous training has no such result: it is compared with a loop over the versions of the
//! weights. The [`Report`] prints as a table.
//!
//! | feature | what it adds |
//! |---|---|
//! | `wgpu`, `cuda` | Burn's backend of that name |
//! | `tracing` | Burn's calls as spans, which this crate's own tests count |
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! # use stovepipe_pipeline::doc_example::Dense;
//! use stovepipe_pipeline::{Batch, CrossEntropy};
//! use stovepipe_verify::Verifier;
//!
//! let device = Device::flex();
//! let layers = Dense::layers(&[4, 8, 8, 3]);
//! let targets = Tensor::<1, Int>::from_ints([0, 1, 2], &device);
//! let batch = Batch::new(Tensor::ones([3, 4], &device), targets);
//! let report = Verifier::new(layers, batch, CrossEntropy::new())
//!     .micro_batches([1, 2])
//!     .run()?;
//! println!("{report}");
//! assert!(report.holds());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod case;
mod checks;
mod error;
mod fingerprint;
mod processes;
mod report;
mod snapshot;
mod subject;
mod tested;
mod verifier;
mod windows;

pub use error::VerifyError;
pub use report::{Check, Outcome, Report};
pub use tested::Tested;
pub use verifier::Verifier;
