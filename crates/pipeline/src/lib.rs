//! The engine of Stovepipe: trains a [Burn](https://burn.dev) model in stages, each on its own device,
//! while micro-batches pass through them forward and backward.
//!
//! A model is a list of [`Layer`]s, between which a [`Flow`] passes. A [`Pipeline`] cuts the list into stages
//! and gives them to workers, each with a device and a thread. It runs mini-batches by a schedule from
//! [`stovepipe_schedule`]; training minimises an [`Objective`]. The result is the one that a single device
//! computes for the same micro-batches. On the CPU with one thread per stage, it has the same bits for any
//! number of stages, recompute mode and schedule that
//! [ascends](stovepipe_schedule::Schedule::is_ascending).
//!
//! | feature | what it adds |
//! |---|---|
//! | `wgpu`, `vulkan`, `metal`, `cuda`, `rocm` | Burn's backend of that name |
//! | `flex` | Burn's CPU backend; in every build, since the engine needs it |

// The derives use this name inside the crate too.
extern crate self as stovepipe_pipeline;

mod api;
#[doc(hidden)]
pub mod doc_example;
mod engine;
pub mod measure;
mod model;

pub use api::{
    batch::{Batch, Evaluation, Inputs, Progress, Step},
    builder::PipelineBuilder,
    cross_entropy::{CrossEntropy, TokenLogits},
    error::{BuildError, StepError},
    gradient_store::GradientStore,
    objective::{MeanOf, Objective},
    pipeline::{Pipeline, Stage},
    precision::{LossScaler, Precision},
    window::Window,
};
#[doc(hidden)]
pub use engine::panic::caught;
pub use engine::{pass_sums::PassSum, report::Held, schedules::check_schedule};
pub use measure::{Measured, Profiler, balance::Balance, device::NamedDevice};
pub use model::{
    flow::{Flow, FlowMapper, Replicated},
    flows,
    keyed_rng::KeyedRng,
    layer::{Context, Layer, LayerError},
    nn,
    packed::Packed,
    parameters::{count_parameters, parameter_bytes},
    plain::{Plain, run_plain},
    wiring::SkipUse,
};
pub use stovepipe_collective::AllReduce;
pub use stovepipe_runtime::StopHandle;
pub use stovepipe_schedule::{Recompute, Segments};

/// Devices: their names, what they support, and how fast they are.
pub mod device {
    pub use crate::measure::{
        device::{DeviceError, MOST_THREADS, NamedDevice},
        link::measure_link,
        lost::lost_devices,
        measured::slowest_link,
        out_of_memory::is_out_of_memory,
        probe::{DeviceFacts, DeviceRates, ProductRate, device_facts, measure_rates},
    };
    pub use stovepipe_schedule::Link;
}

/// Errors, and what they consist of.
pub mod error {
    pub use crate::{
        api::{
            error::{
                BoxedError, BuildError, FailureCause, FlightRecord, ProfilerError, StageFailure,
                StepError, Transfer, TransferKind, WindowError, WorkerRecord, WorkerState,
                WrongSchedule,
            },
            precision::{PrecisionError, UnknownPrecision},
        },
        engine::panic::Panicked,
        measure::device::DeviceError,
        model::{
            packed::PackError,
            unkeyed::{Unkeyed, UnkeyedError},
            wiring::{LayerName, WiringError},
        },
    };
    pub use stovepipe_comm::ProcessError;
    pub use stovepipe_schedule::{SegmentsError, UnknownRecompute};
}

/// The trait without its derive, for the facade, which has its own derive.
#[doc(hidden)]
pub mod facade {
    pub use crate::model::flow::Flow;
}
/// Derives [`Flow`](trait@Flow) for a struct or an enum of flows.
pub use stovepipe_derive::Flow;
/// ```
/// use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor, activation::relu}};
/// use stovepipe_pipeline::{KeyedRng, Layers, layer, nn::Dropout, run_plain};
///
/// #[derive(Module, Debug)]
/// struct Block {
///     linear: Linear,
/// }
///
/// #[layer]
/// impl Block {
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         relu(self.linear.forward(x))
///     }
/// }
///
/// #[derive(Module, Debug, Layers)]
/// struct Model {
///     #[layers(|x: Tensor<3>| -> Tensor<2> { dropout.forward(input.forward(x.flatten(1, 2)), rng) })]
///     input: Linear,
///     blocks: Vec<Block>, // a layer for each
///     head: Linear,
///     #[layers(shared)]
///     dropout: Dropout,
/// }
///
/// let device = Device::flex();
/// let linear = |from, to| LinearConfig::new(from, to).init(&device);
/// let model = Model {
///     input: linear(6, 4),
///     blocks: vec![Block { linear: linear(4, 4) }, Block { linear: linear(4, 4) }],
///     head: linear(4, 2),
///     dropout: Dropout::new(0.1),
/// };
/// let layers = model.into_layers(); // for `Pipeline::builder`
/// assert_eq!(layers.len(), 4);
/// let output = run_plain(&layers, Tensor::ones([5, 2, 3], &device), &(), |_| KeyedRng::none())?.output;
/// assert_eq!(output.dims(), [5, 2]);
/// # Ok::<(), stovepipe_pipeline::LayerError>(())
/// ```
pub use stovepipe_derive::{Layers, layer};
