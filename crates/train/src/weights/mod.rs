//! Tensors in files: models, and weights from elsewhere.

mod adapt;
mod convention;
mod fetched;
mod file;
mod fit;
mod format;
mod model_file;
pub(crate) mod other_tensors;
mod places;
mod pytorch;
pub(crate) mod tensor_file;

pub use convention::Convention;
pub(crate) use fetched::fetched;
pub use file::Weights;
pub use model_file::{load_model, save_model};
pub use other_tensors::OtherTensors;
