//! Shows, on a user's own model and data, that a pipeline changes nothing but the speed.
//!
//! [`Verifier`] trains a model for two steps, with an evaluation after each, under many numbers of
//! stages, schedules, modes of recomputation and numbers of micro-batches, and compares losses, gradients,
//! running statistics and outputs: with each other, bit for bit, and with the model in one piece, run by
//! Burn alone. What it finds is a [`Report`]: a table that prints itself.
//!
//! ```
//! use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Int, Tensor}};
//! use stovepipe_pipeline::{Batch, Context, CrossEntropy, Layer, LayerError};
//! use stovepipe_verify::Verifier;
//!
//! #[derive(Module, Debug)]
//! struct Dense {
//!     linear: Linear,
//! }
//!
//! impl Layer for Dense {
//!     type Input = Tensor<2>;
//!     type Flow = Tensor<2>;
//!     type Output = Tensor<2>;
//!     type Side = ();
//!
//!     fn enter(input: Tensor<2>) -> Tensor<2> {
//!         input
//!     }
//!
//!     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
//!         Ok(self.linear.forward(x).tanh())
//!     }
//!
//!     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
//!         Ok(flow)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex();
//! let layers = [(4, 8), (8, 8), (8, 3)].map(|(from, to)| Dense {
//!     linear: LinearConfig::new(from, to).init(&device),
//! });
//! let batch = Batch::new(Tensor::<1, Tensor::<1);
//! let report = Verifier::new(layers.to_vec(), batch, CrossEntropy::new())
//!     .micro_batches([1, 2])
//!     .run()?;
//! println!("{report}");
//! assert!(report.holds());
//! # Ok(())
//! # }
//! ```

mod case;
mod checks;
mod report;
mod seen;
mod subject;
mod verifier;

pub use report::{Check, Report, Verdict};
pub use verifier::Verifier;
