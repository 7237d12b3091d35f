//! Training steps on a GPU next to the same ones on the CPU.

use std::{env, fmt::Write as _, io::Write as _};

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Device, FloatDType, Tensor},
};
use stovepipe_pipeline::{
    Batch, Flow, FlowMapper, Layer, NamedDevice, Objective, Pipeline, PipelineBuilder, Recompute,
    device::device_facts,
};

use crate::models::{bits, floats, gradients_of};

pub const TOLERANCE: f64 = 1e-4;

/// The largest error of a product whose factors are rounded to 11 significant bits, and of a few in a row.
const OF_ROUNDED_PRODUCTS: f64 = 4.0 / 2048.0;

/// How far a few operations on a device may be from the CPU's.
pub fn tolerance(device: &NamedDevice) -> f64 {
    match rounds_products(device) {
        true => OF_ROUNDED_PRODUCTS,
        false => TOLERANCE,
    }
}

pub fn rounds_products(device: &NamedDevice) -> bool {
    device_facts(device).unwrap().rounds_products
}

/// Two devices of a backend. Of wgpu, the one that it prefers, and the first that it lists: if these are one
/// adapter, they are two logical devices, and values are copied between them as between two cards. Of CUDA, the
/// first two cards, or the only one twice.
///
/// Without a GPU, the test is skipped, or fails if `STOVEPIPE_GPU` names the backend.
pub fn two_devices() -> Option<[NamedDevice; 2]> {
    let asked = env::var("STOVEPIPE_GPU");
    let usual = if cfg!(feature = "wgpu") {
        "wgpu"
    } else {
        "cuda"
    };
    let device = |name: &str| name.parse::<NamedDevice>();
    let both = match asked.as_deref().unwrap_or(usual) {
        "cuda" => device("cuda:0").map(|first| [first.clone(), device("cuda:1").unwrap_or(first)]),
        _ => device("wgpu").and_then(|best| Ok([best, device("wgpu:0")?])),
    };
    match both {
        Ok([best, first]) => {
            assert!(best.device != first.device || best.name.starts_with("cuda"));
            Some([best, first])
        }
        Err(error) => {
            assert!(asked.is_err(), "{error}");
            // Not `eprintln!`, which the test runner hides if the test passes.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

pub fn cpu() -> NamedDevice {
    Device::flex().into()
}

/// The devices of two stages. Each GPU compiles its own kernels, on a thread of its own; in software this takes most of
/// the time, so tests are spread over both.
#[derive(Clone, Copy)]
pub enum Pairs {
    /// The second GPU has both stages, with recomputation.
    OneGpu,
    /// The second GPU and the CPU, with recomputation, and the CPU and that GPU, without.
    WithCpu,
    /// Both GPUs, or the first and the CPU in both orders, with recomputation and without.
    Each,
}

/// Checks that pipelines of two stages train and infer as on the CPU. `layers` makes the same layers each
/// time, without parameters: the pipeline initializes these by its seed.
pub fn check<L, T>(
    pairs: Pairs,
    layers: impl Fn() -> Vec<L>,
    batch: impl Fn() -> (L::Input, T),
    objective: &impl Objective<L::Output, T>,
    change: impl Fn(PipelineBuilder<L>) -> PipelineBuilder<L>,
) where
    L: Layer<Side = ()>,
    T: Flow,
{
    let Some([best, first]) = two_devices() else {
        return;
    };
    let (gpu, other) = match pairs {
        Pairs::Each => (best, first),
        Pairs::OneGpu | Pairs::WithCpu => (first, best),
    };
    let modes: &[_] = match pairs {
        Pairs::OneGpu => &[Recompute::Always],
        Pairs::WithCpu | Pairs::Each => &[Recompute::Always, Recompute::Never],
    };
    for recompute in modes {
        let train = |devices: [NamedDevice; 2], is_rounded: bool| {
            let builder = Pipeline::builder(layers()).devices(devices);
            let builder = builder
                .micro_batches(2)
                .recompute(recompute.clone())
                .seed(7);
            let mut pipeline = change(builder).build().unwrap();
            pipeline.move_to_workers().unwrap(); // as loaded weights are
            if is_rounded {
                pipeline = pipeline.map(&mut Rounding);
            }
            seen(&pipeline, &batch, objective)
        };
        let expected = train([cpu(), cpu()], false);
        // Rounding amplifies where norms and ReLUs are many: a few times what rounded weights do on the CPU.
        let rounded = rounds_products(&gpu).then(|| train([cpu(), cpu()], true));
        let limits = expected.limits(rounded.as_ref());
        let mut with_cpu = [gpu.clone(), cpu()];
        with_cpu.rotate_left(usize::from(*recompute == Recompute::Never));
        let all = match pairs {
            Pairs::OneGpu => vec![[gpu.clone(), gpu.clone()]],
            Pairs::WithCpu => vec![with_cpu],
            Pairs::Each => vec![[gpu.clone(), other.clone()], with_cpu],
        };
        for devices in all {
            let what = format!("{}, {}, recompute {recompute}", devices[0], devices[1]);
            expected.assert_like(&train(devices, false), &limits, &what);
        }
    }
}

pub struct Seen(Vec<(String, Vec<f32>)>);

fn seen<L, T>(
    pipeline: &Pipeline<L>,
    batch: &impl Fn() -> (L::Input, T),
    objective: &impl Objective<L::Output, T>,
) -> Seen
where
    L: Layer<Side = ()>,
    T: Flow,
{
    let (input, target) = batch();
    let batch = Batch::new(input.clone(), target);
    let step = pipeline.train_step(batch.keep_outputs(), objective);
    let step = step.unwrap();
    let inferred = pipeline.infer(input).unwrap();
    let deferred = step.held.iter().map(|held| held.weight_contexts as f32);
    let mut seen = vec![
        ("deferred contexts".to_owned(), deferred.collect()),
        ("loss".to_owned(), vec![step.loss as f32]),
        ("outputs".to_owned(), floats_of(step.outputs.unwrap())),
        ("inference".to_owned(), floats_of(inferred)),
    ];
    let gradients = gradients_of(pipeline, &step.gradients).into_iter();
    seen.extend(gradients.map(|(name, values)| (format!("gradient of {name}"), values)));
    // The step changes running statistics and no parameters.
    let parameters = bits(pipeline).into_iter();
    let values = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
    seen.extend(parameters.map(|(name, bits)| (name, values(bits))));
    Seen(seen)
}

/// To f16 and back: it has 11 significant bits, as TF32.
struct Rounding;

impl ModuleMapper for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let is_trained = value.is_require_grad();
            let inner = if value.is_autodiff() {
                value.inner()
            } else {
                value
            };
            let rounded = inner.cast(FloatDType::F16).cast(FloatDType::F32);
            match is_trained {
                true => rounded.autodiff().require_grad(),
                false => rounded,
            }
        })
    }
}

impl Seen {
    fn assert_like(&self, other: &Self, limits: &[f64], what: &str) {
        let mut wrong = String::new();
        for ((name, difference), &limit) in self.differences(other).into_iter().zip(limits) {
            if difference.is_nan() || difference > limit {
                writeln!(wrong, "  {name}: {difference:e}, of {limit:e}").unwrap();
            }
        }
        assert!(wrong.is_empty(), "{what}\n{wrong}");
    }

    /// How far each value may be away on a device, given what rounded weights do.
    fn limits(&self, rounded: Option<&Self>) -> Vec<f64> {
        match rounded {
            Some(rounded) => {
                let differences = self.differences(rounded).into_iter();
                differences
                    .map(|(_, own)| OF_ROUNDED_PRODUCTS.max(4.0 * own))
                    .collect()
            }
            None => vec![TOLERANCE; self.0.len()],
        }
    }

    /// The distances of all values, relative to their lengths here.
    fn differences(&self, other: &Self) -> Vec<(&str, f64)> {
        assert_eq!(self.0.len(), other.0.len());
        let gradients = (self.0.iter()).filter(|(name, _)| name.starts_with("gradient of "));
        let of_gradients: Vec<_> = gradients.map(|(_, values)| norm(values)).collect();
        assert!(!of_gradients.is_empty());
        let largest = of_gradients.into_iter().fold(0.0, f64::max);
        let mut found = Vec::new();
        for ((name, expected), (other_name, own)) in self.0.iter().zip(&other.0) {
            assert_eq!((name, expected.len()), (other_name, own.len()));
            // A gradient that should be zero is noise.
            let is_gradient = name.starts_with("gradient of ");
            let floor = if is_gradient { 1e-3 * largest } else { 1e-6 };
            let difference: Vec<_> = expected.iter().zip(own).map(|(a, b)| a - b).collect();
            found.push((&**name, norm(&difference) / norm(expected).max(floor)));
        }
        found
    }
}

fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|&value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}

fn floats_of<F: Flow>(flow: F) -> Vec<f32> {
    struct Floats(Vec<f32>);

    impl FlowMapper for Floats {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.extend(floats(tensor.clone()));
            tensor
        }
    }

    let mut floats = Floats(Vec::new());
    flow.map(&mut floats);
    floats.0
}
