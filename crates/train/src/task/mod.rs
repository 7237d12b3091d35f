//! What a model learns and how it is measured.

mod definition;
mod evaluate;
mod metric;
mod totals;

pub use definition::{PADDING, Task};
pub use evaluate::evaluate;
pub(crate) use metric::{About, TrainingMetrics};
pub use metric::{Metric, Metrics};
pub use totals::Totals;
