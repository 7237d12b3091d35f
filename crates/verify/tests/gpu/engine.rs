//! The engine on a GPU.
use std::thread;

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Int, Tensor},
};
use stovepipe_pipeline::{
    Batch, Context, CrossEntropy, KeyedRng, Layer, LayerError, NamedDevice, Recompute, StepError,
    device::measure_link, error::TransferKind,
};
use stovepipe_schedule::{GPipe, OneForwardOneBackward, Rule};

use crate::{
    beside_cpu::{Pairs, check, cpu, rounds_products, tolerance, two_devices},
    models::{self, By, SQUARED, builder, conv_net, dense, images, labels, vectors},
};

fn batch() -> (Tensor<4>, Tensor<1, Int>) {
    (images(8), labels(8, 4))
}

/// Convolutions, batch norms, a value with three readers.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_net_of_convolutions() {
    let objective = CrossEntropy::new();
    check(Pairs::Each, conv_net, batch, &objective, |builder| builder);
}

/// Uniform numbers and masks have the same bits on a device; normal ones are near.
#[test]
fn random_numbers_are_drawn_on_the_device() {
    let Some([device, _]) = two_devices() else {
        return;
    };
    let draw = |on: &NamedDevice, shape: [usize; 3]| {
        let mut rng = KeyedRng::new(1 << 40, 1 << 33, 3, 5..8);
        let numbers = |tensor: Tensor<3>| {
            assert_eq!(tensor.device(), on.device);
            tensor.into_data().try_to_vec::<f32>().unwrap()
        };
        let mut exact = numbers(rng.uniform(shape, &on.device));
        for keep in [0.0, 0.1, 0.75, 1.0] {
            exact.extend(numbers(rng.keep(keep, shape, &on.device)));
        }
        (exact, numbers(rng.normal(shape, &on.device)))
    };
    for shape in [[3, 7, 5], [6, 64, 64], [4, 3, 1]] {
        let (expected, normal) = draw(&cpu(), shape);
        let (found, near) = draw(&device, shape);
        assert!(found == expected, "{shape:?}");
        let pairs = normal.iter().zip(&near);
        let differences = pairs.map(|(a, b)| (a - b).abs() / a.abs().max(1.0));
        let furthest = differences.fold(0.0, f32::max);
        assert!(furthest <= 1e-6, "{shape:?}: {furthest}");
    }
}

/// If no gradient is deferred, the second half of a backward pass is empty.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn backward_passes_in_halves() {
    let objective = CrossEntropy::new();
    check(Pairs::OneGpu, conv_net, batch, &objective, |builder| {
        builder.schedule(By(Rule::ZeroBubbleH1, 1)).micro_batches(3)
    });
}

/// Workers on one device share values without a copy, each with its own stream; a skip passes a worker on
/// another device.
#[test]
fn several_workers_on_a_device() {
    let Some([best, other]) = two_devices() else {
        return;
    };
    let train = |devices: &[&NamedDevice]| {
        let (schedule, recompute) = (OneForwardOneBackward, Recompute::ExceptLast);
        let builder = builder(conv_net(), 3, schedule, 4, recompute);
        let builder = builder.devices(devices.iter().copied().cloned());
        let mut pipeline = builder.build().unwrap();
        let before = models::bits(&pipeline);
        pipeline.move_to_workers().unwrap();
        assert_eq!(models::bits(&pipeline), before);
        let step = pipeline.train_step(batch(), &CrossEntropy::new());
        let step = step.unwrap();
        (step.loss, models::gradients_of(&pipeline, &step.gradients))
    };
    let (loss, expected) = train(&[&cpu(), &cpu(), &cpu()]);
    for devices in [[&best, &best, &best], [&best, &other, &best]] {
        let (found_loss, found) = train(&devices);
        assert!((loss - found_loss).abs() < 1e-4 * loss);
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            let difference = models::relative_difference(found, expected);
            assert!(difference < tolerance(&best), "{name}: {difference}");
        }
    }
}

#[test]
fn errors_name_the_device_by_its_name() {
    let Some([best, first]) = two_devices() else {
        return;
    };
    let builder = builder(dense(&[3, 4, 4]), 2, GPipe, 2, Recompute::Never);
    let names = [best.name.clone(), first.name.clone()];
    let pipeline = builder.devices([best, first]).build().unwrap();
    let stages = pipeline.stages().into_iter();
    let found: Vec<_> = stages.map(|stage| stage.device_name).collect();
    assert_eq!(found, names);
    // NaN is found on a GPU too.
    let batch = |factor| (vectors(8, 3) * factor, labels(8, 4));
    let step = pipeline.train_step(batch(f32::NAN), &CrossEntropy::new());
    let error = step.err().unwrap().to_string();
    let part = format!("stage 0 failed on {}, ", names[0]);
    assert!(error.contains(&part), "{error}");
    let step = pipeline.train_step(batch(1.0), &CrossEntropy::new());
    let _ = step.unwrap();
}

#[test]
fn a_transfer_that_fails_names_both_devices() {
    let Some([best, _]) = two_devices() else {
        return;
    };
    let pipeline = builder(dense(&[3, 4, 4]), 2, GPipe, 2, Recompute::Never)
        .devices([best.clone(), cpu()])
        .on_transfer(|transfer| {
            let is_gradient = transfer.kind == TransferKind::Gradients;
            assert!(!is_gradient, "the device is lost");
        })
        .build()
        .unwrap();
    let batch = (vectors(8, 3), labels(8, 4));
    let step = pipeline.train_step(batch, &CrossEntropy::new());
    let Err(error @ StepError::Failed(_)) = step else {
        panic!("the step should fail");
    };
    let text = error.to_string();
    let part = format!(
        "from stage 1 on cpu to stage 0 on {best} did not arrive: panicked: the device is lost"
    );
    assert!(text.contains(&part), "{text}");
}

#[test]
fn a_link_is_measured_between_devices() {
    let Some([best, first]) = two_devices() else {
        return;
    };
    for (from, to) in [(&best, &first), (&best, &cpu()), (&cpu(), &best)] {
        let link = measure_link(&from.device, &to.device).unwrap();
        let is_plausible = link.latency > 0.0 && link.bandwidth > 1e6;
        assert!(is_plausible, "{from} to {to}: {link:?}");
    }
}

/// Multiplies by a side input.
#[derive(Module, Debug)]
struct Gated {
    linear: Linear,
}

impl Layer for Gated {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = Tensor<2>;

    fn enter(x: Tensor<2>) -> Tensor<2> {
        x
    }

    fn leave(x: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(x)
    }

    fn forward(
        &self,
        x: Tensor<2>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<2>, LayerError> {
        Ok(self.linear.forward(x) * context.side().clone())
    }
}

/// Inputs, side inputs and targets lie on the CPU, or on the device of any stage, while two pipelines send each
/// other's devices values in opposite orders. Nothing waits for ever, and no bit depends on where they lie, as far as
/// kernels are not chosen by their speed.
#[test]
fn values_may_lie_on_any_device() {
    let Some([best, first]) = two_devices() else {
        return;
    };
    let run = |devices: [&NamedDevice; 2]| {
        let linear = || LinearConfig::new(4, 4).init(&cpu().device);
        let layers = vec![Gated { linear: linear() }, Gated { linear: linear() }];
        let builder = builder(layers, 2, OneForwardOneBackward, 2, Recompute::Always);
        let pipeline = builder.devices(devices.map(Clone::clone)).build().unwrap();
        let places = [&cpu(), &best, &first];
        let step = |[input, side, target]: [&NamedDevice; 3]| {
            let values = |place: &NamedDevice| vectors(8, 4).to_device(&place.device);
            let batch = Batch::from((values(input), values(target), values(side)));
            let step = pipeline.train_step(batch, &SQUARED).unwrap();
            models::gradients_of(&pipeline, &step.gradients)
        };
        let expected = step([&cpu(), &cpu(), &cpu()]);
        // Any two of the three lie on each pair of devices once.
        for (input, side) in (0..3).flat_map(|input| (0..3).map(move |side| (input, side))) {
            let [input, side, target] = [input, side, (input + side) % 3].map(|at| places[at]);
            let what = format!("{input}, {side}, {target}");
            let found = step([input, side, target]);
            if !rounds_products(&best) {
                assert!(found == expected, "{what}");
            }
            // Which kernels are tuned first decides which are fastest.
            for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                let difference = models::relative_difference(found, expected);
                assert!(
                    difference < tolerance(&best),
                    "{what}, {name}: {difference}"
                );
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| run([&best, &first]));
        scope.spawn(|| run([&first, &best]));
    });
}
