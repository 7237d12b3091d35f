//! Training steps on wgpu next to the same ones on the CPU.

use std::{env, fmt::Write as _, io::Write as _};

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{
    Batch, Flow, Layer, NamedDevice, Objective, Pipeline, PipelineBuilder, Recompute,
};

/// What is asked for.
pub const TOLERANCE: f64 = 1e-4;

/// Two devices of wgpu, each requested for itself: what wgpu takes to be the best, and the first that it
/// lists. Where there is one adapter, they are two logical devices on it, and between them values are
/// copied as between two cards.
///
/// Without an adapter there are none, which is said; with `STOVEPIPE_REQUIRE_WGPU=1` it is a failure.
pub fn two_devices() -> Option<[NamedDevice; 2]> {
    let device = |name: &str| name.parse::<NamedDevice>();
    match (device("wgpu"), device("wgpu:0")) {
        (Ok(best), Ok(first)) => {
            assert_ne!(best.device, first.device);
            Some([best, first])
        }
        (Err(error), _) | (_, Err(error)) => {
            let required = env::var("STOVEPIPE_REQUIRE_WGPU").is_ok_and(|value| value == "1");
            assert!(!required, "{error}");
            // Past the test runner, which hides what a test prints that passes.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

pub fn cpu() -> NamedDevice {
    Device::flex().into()
}

/// Which pipelines of two stages.
pub enum Pairs {
    /// Of two devices of wgpu, with recomputation.
    One,
    /// Of two devices of wgpu, and of one and the CPU, with recomputation and without.
    Each,
}

/// Pulls a model through pipelines of two stages. Each must train, and infer afterwards, as the same pipeline on the CPU does.
///
/// `layers` is to make the same layers each time, but for what is drawn: that the pipeline does, by its seed.
pub fn check<L, T>(
    pairs: &Pairs,
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
    let modes: &[_] = match pairs {
        Pairs::One => &[Recompute::Always],
        Pairs::Each => &[Recompute::Always, Recompute::Never],
    };
    for &recompute in modes {
        let train = |devices: [NamedDevice; 2]| {
            let builder = Pipeline::builder(layers()).devices(devices);
            let builder = builder.micro_batches(2).recompute(recompute).seed(7);
            seen(&change(builder).build().unwrap(), &batch, objective)
        };
        let expected = train([cpu(), cpu()]);
        let mixed = match recompute {
            Recompute::Always => [best.clone(), cpu()],
            _ => [cpu(), best.clone()],
        };
        let unmixed = [best.clone(), first.clone()];
        let all = match pairs {
            Pairs::One => vec![unmixed],
            Pairs::Each => vec![unmixed, mixed],
        };
        for devices in all {
            let what = format!("{}, {}, recompute {recompute}", devices[0], devices[1]);
            expected.assert_like(&train(devices), &what);
        }
    }
}

/// What a step and an inference leave, by name.
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
    let side = ();
    let batch = Batch::from((input.clone(), target, side));
    let step = pipeline.train_step(batch.keep_outputs(), objective);
    let step = step.unwrap();
    let mut seen = vec![("loss".to_owned(), vec![step.loss as f32])];
    seen.push(("outputs".to_owned(), floats_of(step.outputs.unwrap())));
    seen.extend(named("gradient of ", pipeline, Some(&step.gradients)));
    // Parameters are as they were, but for running statistics.
    seen.extend(named("", &pipeline.valid(), None));
    let inferred = pipeline.infer(input).unwrap();
    seen.push(("inference".to_owned(), floats_of(inferred)));
    Seen(seen)
}

impl Seen {
    fn assert_like(&self, other: &Self, what: &str) {
        assert_eq!(self.0.len(), other.0.len(), "{what}");
        let gradients = (self.0.iter()).filter(|(name, _)| name.starts_with("gradient of "));
        let of_gradients: Vec<_> = gradients.map(|(_, values)| norm(values)).collect();
        assert!(!of_gradients.is_empty());
        let largest = of_gradients.into_iter().fold(0.0, f64::max);
        let mut wrong = String::new();
        for ((name, expected), (other_name, found)) in self.0.iter().zip(&other.0) {
            assert_eq!((name, expected.len()), (other_name, found.len()), "{what}");
            // A gradient that is zero but for rounding has no digits to compare.
            let floor = match name.starts_with("gradient of ") {
                true => 1e-3 * largest,
                false => 1e-6,
            };
            let difference: Vec<_> = expected.iter().zip(found).map(|(a, b)| a - b).collect();
            let difference = norm(&difference) / norm(expected).max(floor);
            if difference.is_nan() || difference > TOLERANCE {
                writeln!(wrong, "  {name}: {difference:e} of {:e}", norm(expected)).unwrap();
            }
        }
        assert!(wrong.is_empty(), "{what}\n{wrong}");
    }
}

fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|&value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Every float of a module by its path, or its gradient.
fn named<M: Module>(
    prefix: &str,
    module: &M,
    gradients: Option<&GradientsParams>,
) -> Vec<(String, Vec<f32>)> {
    struct Named<'a> {
        prefix: &'a str,
        path: Vec<String>,
        gradients: Option<&'a GradientsParams>,
        found: Vec<(String, Vec<f32>)>,
    }

    impl ModuleVisitor for Named<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = match self.gradients {
                Some(gradients) => gradients.get::<D>(param.id),
                None => Some(param.val()),
            };
            if let Some(tensor) = tensor {
                let name = format!("{}{}", self.prefix, self.path.join("."));
                self.found.push((name, floats(tensor)));
            }
        }
    }

    let mut named = Named {
        prefix,
        path: Vec::new(),
        gradients,
        found: Vec::new(),
    };
    module.visit(&mut named);
    named.found
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.inner().into_data().try_to_vec().unwrap()
}

/// All floats of a flow, one tensor after the other.
fn floats_of<F: Flow>(flow: F) -> Vec<f32> {
    struct Floats(Vec<f32>);

    impl stovepipe_pipeline::FlowMapper for Floats {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.extend(floats(tensor.clone()));
            tensor
        }
    }

    let mut floats = Floats(Vec::new());
    flow.map(&mut floats);
    floats.0
}
