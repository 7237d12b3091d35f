//! Training steps on wgpu next to the same ones on the CPU.

use std::{env, fmt::Write as _, io::Write as _};

use burn::tensor::{Device, Tensor};
use stovepipe_pipeline::{
    Batch, Flow, FlowMapper, Layer, NamedDevice, Objective, Pipeline, PipelineBuilder, Recompute,
};

use crate::models::{bits, floats, gradients_of};

pub const TOLERANCE: f64 = 1e-4;

/// Two wgpu devices: the one that wgpu prefers, and the first that it lists. If these are one adapter,
/// they are two logical devices, and values are copied between them as between two cards.
///
/// Without an adapter, the test is skipped, or fails if `STOVEPIPE_REQUIRE_WGPU=1`.
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
            // Not `eprintln!`, which the test runner hides if the test passes.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

pub fn cpu() -> NamedDevice {
    Device::flex().into()
}

/// The devices of two stages.
pub enum Pairs {
    /// Two wgpu devices, with recomputation.
    One,
    /// Two wgpu devices, or one and the CPU, with recomputation and without.
    Each,
}

/// Checks that pipelines of two stages train and infer as on the CPU. `layers` makes the same layers each
/// time, without parameters: the pipeline initializes these by its seed.
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
        let mut all = vec![[best.clone(), first.clone()]];
        if let Pairs::Each = pairs {
            let mut mixed = [best.clone(), cpu()];
            mixed.rotate_left(usize::from(recompute == Recompute::Never));
            all.push(mixed);
        }
        for devices in all {
            let what = format!("{}, {}, recompute {recompute}", devices[0], devices[1]);
            expected.assert_like(&train(devices), &what);
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
            // A gradient that should be zero is noise.
            let is_gradient = name.starts_with("gradient of ");
            let floor = if is_gradient { 1e-3 * largest } else { 1e-6 };
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
