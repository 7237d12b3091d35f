//! Tensors in files: models, and weights from elsewhere.

mod adapt;
mod base;
mod burnpack;
mod export;
mod file;
mod fit;
mod format;
mod hub;
mod hub_folder;
mod model_file;
pub(crate) mod other_tensors;
mod places;
mod pytorch;
pub(crate) mod tensor_file;
mod tensor_sums;
mod together;

pub use base::Base;
pub use export::{NameAndShape, save_for_pytorch, save_some};
pub use file::Weights;
pub use format::Convention;
pub use hub_folder::{Change, rewrite_folder};
pub use model_file::{load_model, save_model};
pub use other_tensors::OtherTensors;
pub(crate) use together::{SharedTensors, copy_together, write_together};
