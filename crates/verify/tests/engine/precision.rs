//! Mixed precision: stages compute in bf16 or f16, the model stays in f32.

use burn::{
    module::{ModuleVisitor, Param},
    tensor::{DType, FloatDType, Int, Tensor},
};
use stovepipe_decoder::{DecoderConfig, LoraConfig};
use stovepipe_pipeline::measure::OptimizerState;

use crate::models::*;

const MIXED: [Precision; 2] = [Precision::Bf16, Precision::F16];

/// The largest relative error of a rounding: half the distance of neighbouring numbers.
fn rounding(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 2f64.powi(-24),
        Precision::Bf16 => 2f64.powi(-8),
        Precision::F16 => 2f64.powi(-11),
    }
}

fn in_one_stage<L: Layer>(layers: Vec<L>, precision: Precision) -> Pipeline<L> {
    let builder = builder(layers, 1, By(Rule::GPipe, 1), 3, Recompute::Never);
    builder.precision(precision).build().unwrap()
}

/// The scale after this number of steps that overflow.
fn halved(times: usize) -> LossScaler {
    let mut scaler = LossScaler::default();
    (0..times).for_each(|_| scaler.update(true));
    scaler
}

/// All gradients in one list.
fn gradients<L: Layer>(pipeline: &Pipeline<L>, step: &Step<L>) -> Vec<f32> {
    let gradients = gradients_of(pipeline, &step.gradients);
    gradients.into_iter().flat_map(|(_, own)| own).collect()
}

/// A training step as bits: its loss, gradients, outputs, and the model after it.
type Seen = (u64, ByPath<u32>, Vec<u32>, ByPath<u32>);

fn seen(pipeline: &Pipeline<ConvNet>) -> Seen {
    let batch = Batch::new(images(7), labels(7, 4)).keep_outputs();
    let step = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
    let gradients = gradient_bits(pipeline, &step.gradients);
    let outputs = tensor_bits(step.outputs.unwrap());
    (step.loss.to_bits(), gradients, outputs, bits(pipeline))
}

#[test]
fn stages_make_no_difference_in_any_precision() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let expected = seen(&in_one_stage(conv_net(), precision));
        for rule in RULES {
            for recompute in modes(7, 1) {
                let workers = 2.min(7 / rule.stages(1));
                let builder = builder(conv_net(), workers, rule, 3, recompute.clone());
                let found = seen(&builder.precision(precision).build().unwrap());
                assert!(found == expected, "{precision}, {rule:?}, {recompute:?}");
            }
        }
    }
}

/// Values between layers have half the size. Parameters keep theirs, and a step keeps copies
/// of them.
#[test]
fn sizes_are_predicted_for_the_precision() {
    let sized = |precision| {
        let profiler = Profiler::new(&cpu()).precision(precision);
        let profile = profiler.measure(&conv_net(), images(4)).unwrap();
        let builder = builder(conv_net(), 2, By(Rule::GPipe, 1), 3, Recompute::Always);
        let builder = builder.precision(precision);
        let forecast = builder.forecast(&Measured::from(&profile), OptimizerState::new(2));
        (profile, forecast.unwrap().memory)
    };
    let (wide, wide_memory) = sized(Precision::F32);
    for precision in MIXED {
        let (narrow, memory) = sized(precision);
        assert_eq!(2 * narrow.input, wide.input);
        for (narrow, wide) in narrow.layers.iter().zip(&wide.layers) {
            assert_eq!(2 * narrow.output, wide.output, "{}", wide.name);
            assert_eq!(narrow.parameters, wide.parameters, "{}", wide.name);
        }
        for (narrow, wide) in memory.iter().zip(&wide_memory) {
            assert_eq!(2 * narrow.parameters, 3 * wide.parameters);
            assert_eq!(narrow.optimizer, wide.optimizer);
            assert_eq!(2 * narrow.inputs, wide.inputs);
        }
    }
}

/// A base of 16 bits that an adapter leaves as it is needs no copies.
#[test]
fn a_base_of_half_the_size_is_predicted() {
    let device = cpu();
    let config = DecoderConfig {
        length: 8,
        ..DecoderConfig::new(29, 32, 2, 4)
    };
    let layers = config.init_to_load(FloatDType::BF16, &device).unwrap();
    let layers = LoraConfig::new(4).add_to(layers, &config, &device).unwrap();
    let mut needed = Needed::default();
    layers.iter().for_each(|layer| layer.visit(&mut needed));
    assert!(needed.half > 0 && needed.wide > 0);

    let profiler = Profiler::new(&cpu()).precision(Precision::Bf16);
    let tokens = Tensor::<2, Int>::zeros([2, 8], &device);
    let profile = profiler.measure(&layers, tokens).unwrap();
    let builder = builder(layers, 2, By(Rule::GPipe, 1), 3, Recompute::Always);
    let builder = builder.precision(Precision::Bf16);
    let forecast = builder.forecast(&Measured::from(&profile), OptimizerState::new(2));
    let memory = forecast.unwrap().memory.into_iter();
    let parameters: u64 = memory.map(|memory| memory.parameters).sum();
    assert_eq!(parameters, needed.half + needed.wide);
}

/// Bytes of parameters of 16 bits, and of others and their copies.
#[derive(Default)]
struct Needed {
    half: u64,
    wide: u64,
}

impl ModuleVisitor for Needed {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let numbers = param.lazy_shape().num_elements() as u64;
        match param.val().dtype() {
            DType::BF16 => self.half += 2 * numbers,
            _ => self.wide += (4 + 2) * numbers,
        }
    }
}

#[test]
fn f32_is_what_a_pipeline_computes_in() {
    let usual = built(conv_net(), 1, By(Rule::GPipe, 1), 3, Recompute::Never);
    assert_eq!(usual.precision(), Precision::F32);
    assert!(usual.loss_scaler().is_none());
    assert!(seen(&usual) == seen(&in_one_stage(conv_net(), Precision::F32)));
}

/// Forward, a dense layer rounds its parameters, the product, the sum with the bias and the tangent;
/// backward, the three operations of the tangent's slope and two products: nine times, and none of these
/// makes a relative error larger, to first order, where slopes are about 1.
#[test]
fn gradients_are_those_of_f32_but_for_rounding() {
    let widths = [5, 8, 8, 8, 3];
    let train = |precision| {
        let pipeline = in_one_stage(dense(&widths), precision);
        let step = train(&pipeline, vectors(8, 5), 3).unwrap();
        (step.loss, gradients(&pipeline, &step))
    };
    let (loss, exact) = train(Precision::F32);
    let errors = MIXED.map(|precision| {
        let (own_loss, own) = train(precision);
        let error = relative_difference(&own, &exact);
        let roundings = 9.0 * (widths.len() - 1) as f64;
        let most = roundings * rounding(precision);
        assert!(error < most, "{precision}: {error} of {most}");
        let change = (own_loss - loss).abs() / loss;
        assert!(change < most, "{precision}: {own_loss}, {loss}");
        error
    });
    // It is rounded indeed: bf16 has three bits less.
    assert!(errors[1] > 0.1 * rounding(Precision::F16), "{errors:?}");
    assert!(errors[0] > 4.0 * errors[1], "{errors:?}");
}

/// A layer that checks the type of its input, its weight and its side input.
#[derive(Module, Debug)]
struct Typed {
    linear: Linear,
    #[module(skip)]
    expected: DType,
}

impl Layer for Typed {
    flow!(Tensor<2>, side: Tensor<2>);

    fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        let (side, weight) = (context.side(), self.linear.weight.val());
        let found = [x.dtype(), weight.dtype(), side.dtype()];
        if found != [self.expected; 3] {
            let (expected, found) = (format!("{:?}", self.expected), format!("{found:?}"));
            return Err(LayerError::new(expected, found));
        }
        Ok(self.linear.forward(x + side.clone()))
    }
}

/// Checks the types that the objective gets.
#[derive(Clone)]
struct InF32;

impl Objective<Tensor<2>, Tensor<2>> for InF32 {
    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        assert_eq!([output.dtype(), target.dtype()], [DType::F32; 2]);
        (output - target).powi_scalar(2).sum()
    }

    fn weight(&self, target: &Tensor<2>) -> f64 {
        target.dims()[0] as f64
    }
}

#[test]
fn layers_compute_in_it_and_all_else_is_in_f32() {
    for (precision, dtype) in [
        (Precision::F32, DType::F32),
        (Precision::Bf16, DType::BF16),
        (Precision::F16, DType::F16),
    ] {
        let layers = [(); 3].map(|()| Typed {
            linear: linear(4, 4),
            expected: dtype,
        });
        let rule = OneForwardOneBackward;
        let builder = builder(layers.into(), 2, rule, 2, Recompute::Always);
        let pipeline = builder.precision(precision).build().unwrap();
        pipeline.set_loss_scaler(halved(10)); // These are large gradients.
        let batch = || Batch::from((vectors(4, 4), vectors(4, 4), vectors(4, 4)));
        let step = pipeline.train_step(batch().keep_outputs(), &InF32).unwrap();
        assert_eq!(step.outputs.unwrap().dtype(), DType::F32);
        for layer in pipeline.layers() {
            let gradient = step.gradients.get::<2>(layer.linear.weight.id).unwrap();
            assert_eq!(layer.linear.weight.val().dtype(), DType::F32);
            assert_eq!(gradient.dtype(), DType::F32);
        }
        pipeline.evaluate(batch(), &InF32).unwrap();
        let output = pipeline.infer((vectors(4, 4), vectors(4, 4))).unwrap();
        assert_eq!(output.dtype(), DType::F32);
    }
}

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

#[layer]
impl Normed {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.linear.forward(x))
    }
}

/// With a momentum of 0.002, the last steps move a statistic by less than bf16 can represent, which would
/// add up to a fifth of it.
#[test]
fn running_statistics_move_by_less_than_a_rounding() {
    let statistics = |precision, micro_batches| {
        let layers = vec![Normed {
            linear: linear(4, 4),
            norm: BatchNormConfig::new(4).with_momentum(0.002).init(&cpu()),
        }];
        let by = By(Rule::GPipe, 1);
        let builder = builder(layers, 1, by, micro_batches, Recompute::Never);
        let pipeline = builder.precision(precision).build().unwrap();
        (0..200).for_each(|_| drop(train(&pipeline, vectors(12, 4), 4).unwrap()));
        let norm = &pipeline.layers()[0].norm.valid();
        let read = [&norm.running_mean, &norm.running_var].map(|state| state.value());
        assert!(read.iter().all(|state| state.dtype() == DType::F32));
        read.map(floats)
    };
    for micro_batches in [1, 3] {
        let [means, variances] = statistics(Precision::F32, micro_batches);
        for precision in MIXED {
            let [own_means, own_variances] = statistics(precision, micro_batches);
            // Rounded are input, weight and product, their mean, squares and sum, and the momentum.
            let most = 8.0 * rounding(precision);
            for (own, exact) in [(&own_means, &means), (&own_variances, &variances)] {
                let error = relative_difference(own, exact);
                let what = format!("{precision}, {micro_batches}");
                assert!(error < most, "{what}: {error} of {most}");
            }
        }
    }
}

fn overflowing(factor: f64) -> MeanOf<impl Fn(Tensor<2>, Tensor<2>) -> Tensor<1> + Clone + Send> {
    MeanOf(move |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean().mul_scalar(factor))
}

#[test]
fn a_step_that_overflows_changes_nothing_and_training_goes_on() {
    let normed = |()| Normed {
        linear: linear(4, 4),
        norm: norm(4),
    };
    let train = |pipeline: &Pipeline<Normed>, factor| {
        pipeline.train_step((vectors(24, 4), vectors(24, 4)), &overflowing(factor))
    };
    let by = By(Rule::OneForwardOneBackward, 1);
    for recompute in [Recompute::Always, Recompute::Never] {
        let build = |precision| {
            let layers = [(); 3].map(normed).into();
            let builder = builder(layers, 2, by, 3, recompute.clone());
            builder.precision(precision).build().unwrap()
        };
        let pipeline = build(Precision::F16);
        let before = bits(&pipeline);
        let mut skipped = 0;
        let step = loop {
            let step = train(&pipeline, 1000.0).unwrap();
            if !step.overflowed {
                break step;
            }
            skipped += 1;
            assert!(step.loss.is_finite(), "{}", step.loss);
            assert!(step.gradients.is_empty());
            assert_eq!(bits(&pipeline), before, "statistics, too");
            let scale = pipeline.loss_scaler().unwrap().scale();
            assert_eq!(scale, 65536.0 / 2f64.powi(skipped));
        };
        assert!((3..16).contains(&skipped), "{skipped}");
        assert_eq!(pipeline.steps(), skipped as u64 + 1);
        assert_ne!(bits(&pipeline), before, "statistics move again");
        let exact = build(Precision::F32);
        let expected = train(&exact, 1000.0).unwrap();
        let error =
            relative_difference(&gradients(&pipeline, &step), &gradients(&exact, &expected));
        // Norms of few samples amplify earlier rounding errors.
        assert!(error < 0.05, "{error}");
        // It fits into the range of bf16.
        assert!(!train(&build(Precision::Bf16), 1000.0).unwrap().overflowed);
    }
}

#[test]
fn what_no_scale_makes_finite_is_an_error_in_the_end() {
    let pipeline = in_one_stage(dense(&[4, 4, 4]), Precision::F16);
    let train = || pipeline.train_step((vectors(6, 4), vectors(6, 4)), &overflowing(1e9));
    // From 65536 to 1, each once.
    for _ in 0..17 {
        assert!(train().unwrap().overflowed);
    }
    for _ in 0..2 {
        let error = train().unwrap_err();
        assert!(matches!(error, StepError::NotFinite { .. }), "{error}");
        assert!(error.to_string().contains("gradient"), "{error}");
        assert_eq!(pipeline.loss_scaler().unwrap().scale(), 0.5);
    }
    // From there on, the check can be switched off.
    let builder = builder(dense(&[4, 4]), 1, By(Rule::GPipe, 1), 1, Recompute::Never);
    let builder = builder.precision(Precision::F16).check_finite(false);
    let lenient = builder.build().unwrap();
    let skipped = (0..20).filter(|_| {
        let step = lenient.train_step((vectors(6, 4), vectors(6, 4)), &overflowing(1e9));
        step.unwrap().overflowed
    });
    assert_eq!(skipped.count(), 17);
}

/// A norm's output and gradients are finite, but the variance of its input is no number of f16.
#[test]
fn a_running_variance_that_overflows_is_an_overflow_of_the_step() {
    let layers = || {
        vec![Normed {
            linear: linear(4, 4),
            norm: norm(4),
        }]
    };
    let train = |pipeline: &Pipeline<Normed>, factor: f64| {
        let batch = (vectors(6, 4).mul_scalar(factor), vectors(6, 4));
        pipeline.train_step(batch, &overflowing(1e-4))
    };
    let pipeline = in_one_stage(layers(), Precision::F16);
    let before = bits(&pipeline);
    assert!(train(&pipeline, 5000.0).unwrap().overflowed);
    assert_eq!(bits(&pipeline), before);
    assert!(!train(&pipeline, 1.0).unwrap().overflowed);
    let error = loop {
        match train(&pipeline, 5000.0) {
            Ok(step) => assert!(step.overflowed),
            Err(error) => break error,
        }
    };
    assert_contains(&error, "running statistics of layer 0");
    let exact = in_one_stage(layers(), Precision::F32);
    assert!(!train(&exact, 5000.0).unwrap().overflowed);
}

/// 2⁻²⁴ is the smallest number of f16; less than half of it is rounded to zero.
#[test]
fn small_gradients_are_there_because_the_loss_is_scaled() {
    let squares = |pipeline: &Pipeline<Dense>| {
        let step = pipeline.train_step((vectors(6, 4), vectors(6, 4)), &overflowing(1e-7));
        let step = step.unwrap();
        let gradients = gradients(pipeline, &step).into_iter();
        gradients.map(|g| f64::from(g).powi(2)).sum::<f64>()
    };
    let build = |precision| in_one_stage(dense(&[4, 4, 4]), precision);
    let scaled = squares(&build(Precision::F16));
    let exact = squares(&build(Precision::F32));
    assert!((scaled / exact - 1.0).abs() < 0.05, "{scaled} of {exact}");
    let unscaled = build(Precision::F16);
    unscaled.set_loss_scaler(halved(16));
    assert_eq!(unscaled.loss_scaler().unwrap().scale(), 1.0);
    assert_eq!(squares(&unscaled), 0.0);
}

/// The scales of `torch.amp.GradScaler("cpu")` of PyTorch 2.15, as exponents of two and the steps with each,
/// for finite steps and then a step with an infinite gradient, repeated; the last ones are finite.
#[test]
fn scales_are_those_of_grad_scaler() {
    let good_steps = [0, 1, 5, 1999, 2000, 2001, 4003, 3, 2000, 1998];
    let after = 6001;
    let exponents = [
        16, 15, 14, 13, 12, 13, 12, 13, 12, 13, 14, 13, 12, 13, 12, 11, 12, 13, 14,
    ];
    let steps = [
        1, 2, 6, 2000, 2000, 1, 2000, 2, 2000, 2000, 4, 4, 2000, 1, 1999, 2000, 2000, 2000, 2,
    ];
    let overflows = good_steps
        .into_iter()
        .flat_map(|good| std::iter::repeat_n(false, good).chain([true]));
    let mut scaler = LossScaler::default();
    let mut scales = vec![scaler.scale()];
    for overflowed in overflows.chain(std::iter::repeat_n(false, after)) {
        scaler.update(overflowed);
        scales.push(scaler.scale());
    }
    let runs = scales.chunk_by(|a, b| a == b);
    let runs: Vec<_> = runs.map(|run| (run.len(), run[0])).collect();
    let expected = exponents.map(|exponent| 2f64.powi(exponent));
    assert_eq!(runs, steps.into_iter().zip(expected).collect::<Vec<_>>());
}
