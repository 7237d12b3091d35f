//! Weighted losses, side inputs, auxiliary heads, and kept outputs.

use std::ops::Range;

use burn::nn::{Embedding, EmbeddingConfig};
use stovepipe_pipeline::doc_example;

use crate::models::*;

/// Tokens to logits; every layer reads a mask and a table of positions as side inputs.
#[derive(Module, Debug)]
pub enum Tagger {
    Embed(Embedding),
    Mix(Linear),
    Head(Linear),
}

#[derive(Clone, Debug, Flow)]
pub enum Text {
    Tokens(Tensor<2, Int>),
    Hidden(Tensor<3>),
}

#[derive(Clone, Debug, Flow)]
pub struct Aside {
    /// [batch, length]: 1 where there is a token, 0 where there is padding.
    mask: Tensor<2>,
    /// [length, model], the same for every sample.
    positions: Replicated<Tensor<2>>,
    /// Has its own `split`.
    temperature: Temperatures,
}

/// One number for each two samples.
#[derive(Clone, Debug)]
pub struct Temperatures(Vec<f32>);

impl Flow for Temperatures {
    fn map<M: FlowMapper>(self, _: &mut M) -> Self {
        self
    }

    fn batch_sizes(&self, _: &mut Vec<usize>) {}

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        let mut rest = self.0.into_iter();
        let take = |&size: &usize| Self(rest.by_ref().take(size / 2).collect());
        sizes.iter().map(take).collect()
    }
}

impl Layer for Tagger {
    type Input = Tensor<2, Int>;
    type Flow = Text;
    type Output = Tensor<3>;
    type Side = Aside;

    fn enter(input: Tensor<2, Int>) -> Text {
        Text::Tokens(input)
    }

    fn forward(&self, flow: Text, context: &mut Context<'_, Self>) -> Result<Text, LayerError> {
        let side = context.side();
        Ok(Text::Hidden(match (self, flow) {
            (Self::Embed(embedding), Text::Tokens(tokens)) => {
                embedding.forward(tokens) + side.positions.0.clone().unsqueeze()
            }
            (Self::Mix(linear), Text::Hidden(x)) => {
                let [samples, ..] = x.dims();
                assert_eq!(side.temperature.0.len(), samples / 2);
                let mixed = linear.forward(x.clone()).tanh() * side.mask.clone().unsqueeze_dim(2);
                x + mixed.mul_scalar(side.temperature.0[0])
            }
            (Self::Head(linear), Text::Hidden(x)) => {
                let logits = linear.forward(x);
                context.auxiliary(logits.clone().mul_scalar(0.5));
                logits
            }
            (_, Text::Tokens(_)) => return Err(LayerError::new("hidden states", "tokens")),
            (_, Text::Hidden(_)) => return Err(LayerError::new("tokens", "hidden states")),
        }))
    }

    fn leave(flow: Text) -> Result<Tensor<3>, LayerError> {
        match flow {
            Text::Hidden(logits) => Ok(logits),
            Text::Tokens(_) => Err(LayerError::new("logits", "tokens")),
        }
    }
}

const LENGTH: usize = 5;
const PADDING: i64 = -100;

pub fn tagger() -> Vec<Tagger> {
    vec![
        Tagger::Embed(EmbeddingConfig::new(11, 6).init(&cpu())),
        Tagger::Mix(linear(6, 6)),
        Tagger::Mix(linear(6, 6)),
        Tagger::Head(linear(6, 4)),
    ]
}

/// Samples of unlike length: sample `i` has `1 + i % LENGTH` tokens, the rest is padding.
pub fn text(samples: usize) -> Batch<Tensor<2, Int>, Tensor<2, Int>, Aside> {
    let ints = |value: &dyn Fn(usize, usize) -> usize| {
        let values = (0..samples * LENGTH).map(|i| value(i / LENGTH, i % LENGTH) as i64);
        let values: Vec<_> = values.collect();
        Tensor::<1, Int>::from_ints(values.as_slice(), &cpu()).reshape([samples, LENGTH])
    };
    let mask = ints(&|sample, place| usize::from(place <= sample % LENGTH));
    let classes = ints(&|sample, place| (sample + place) % 4);
    Batch::from((
        ints(&|sample, place| (sample * 3 + place * 5) % 11),
        classes.mask_fill(mask.clone().equal_elem(0), PADDING),
        Aside {
            mask: mask.float(),
            positions: Replicated(pattern([LENGTH, 6])),
            temperature: Temperatures(vec![0.7; samples / 2]),
        },
    ))
}

pub fn objective() -> CrossEntropy {
    CrossEntropy::new()
        .ignoring(PADDING)
        .with_smoothing(0.1)
        .with_auxiliary_share(0.4)
}

/// Padding is ignored, so micro-batches have different weights. The loss is the mini-batch's mean.
#[test]
fn a_loss_that_ignores_padding_is_the_mean_over_the_whole_mini_batch() {
    let run = |stages, micro_batches| {
        let (rule, recompute) = (OneForwardOneBackward, Recompute::Always);
        let pipeline = built(tagger(), stages, rule, micro_batches, recompute);
        let step = pipeline.train_step(text(8), &objective()).unwrap();
        let gradients = gradients_of(&pipeline, &step.gradients);
        (step, gradients)
    };
    let (one, expected) = run(1, 1);
    assert_eq!(one.weight, f64::from(1 + 2 + 3 + 4 + 5 + 1 + 2 + 3));
    assert!(one.auxiliary_loss > 0.0 && one.auxiliary_loss < one.loss);
    for (stages, micro_batches) in [(1, 4), (2, 2), (4, 4)] {
        let (other, found) = run(stages, micro_batches);
        assert!((other.loss - one.loss).abs() < 1e-6);
        assert!((other.auxiliary_loss - one.auxiliary_loss).abs() < 1e-6);
        assert_close(&found, &expected, 1e-5);
    }
}

/// The reference: forward through the layers, one backward from the main loss plus the auxiliary share.
#[test]
fn auxiliary_heads_add_their_share() {
    let pipeline = built(tagger(), 2, GPipe, 1, Recompute::Always);
    let batch = text(4);
    let layers: Vec<Tagger> = pipeline.layers().to_vec();
    let mut flow = Tagger::enter(batch.input.clone());
    let mut context = Context::new(&batch.side, true);
    for layer in &layers {
        flow = layer.forward(flow, &mut context).unwrap();
    }
    let logits = Tagger::leave(flow).unwrap();
    let weight = Objective::<Tensor<3>, _>::weight(&objective(), &batch.target);
    let plain = CrossEntropy::new().ignoring(PADDING).with_smoothing(0.1);
    let aside = plain.loss(logits.clone().mul_scalar(0.5), batch.target.clone());
    let main = plain.loss(logits, batch.target.clone());
    let loss = (main + aside.mul_scalar(0.4)).div_scalar(weight);
    let expected = loss.clone().into_scalar::<f32>();
    let gradients = GradientsParams::from_grads(loss.backward(), &layers);

    let step = pipeline.train_step(batch, &objective()).unwrap();
    assert!((step.loss - f64::from(expected)).abs() < 1e-6);
    let found = gradients_of(&layers, &step.gradients);
    assert_close(&found, &gradients_of(&layers, &gradients), 1e-5);
}

/// A linear layer; one with a head adds its output as auxiliary.
#[derive(Module, Debug)]
pub struct Headed {
    linear: Linear,
    head: bool,
}

impl Layer for Headed {
    flow!(Tensor<2>);

    fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        let y = self.linear.forward(x).tanh();
        if self.head {
            context.auxiliary(y.clone());
        }
        Ok(y)
    }
}

/// Heads on the first and the third of five layers.
pub fn headed() -> Vec<Headed> {
    let layer = |index| Headed {
        linear: linear(4, 4),
        head: index == 0 || index == 2,
    };
    (0..5).map(layer).collect()
}

/// On stages before the last as soon as there is
/// more than one. Compared with the reference once, then the same bits for every cut and schedule.
#[test]
fn losses_on_stages_before_the_last() {
    let objective = CrossEntropy::new().with_auxiliary_share(0.3);
    let run = |stages, rule, recompute| {
        let pipeline = built(headed(), stages, By(rule, 1), 3, recompute);
        let step = pipeline.train_step((vectors(7, 4), labels(7, 4)), &objective);
        let step = step.unwrap();
        let losses = (step.loss.to_bits(), step.auxiliary_loss.to_bits());
        (pipeline, step.gradients, losses)
    };
    let (pipeline, gradients, losses) = run(1, Rule::GPipe, Recompute::Never);
    let expected = gradient_bits(&pipeline, &gradients);
    for stages in [1, 2, 3, 5] {
        for rule in [Rule::GPipe, Rule::OneForwardOneBackward] {
            let by_layer: Recompute = "0,1-2,4".parse().unwrap();
            for recompute in Recompute::MODES.into_iter().chain([by_layer]) {
                let (pipeline, gradients, found) = run(stages, rule, recompute);
                assert_eq!(found, losses);
                assert_eq!(gradient_bits(&pipeline, &gradients), expected);
            }
        }
    }

    let layers = pipeline.layers().to_vec();
    let mut context = Context::new(&(), true);
    let mut flow = vectors(7, 4).autodiff();
    for layer in &layers {
        flow = layer.forward(flow, &mut context).unwrap();
    }
    let plain = CrossEntropy::new();
    let main = plain.loss(flow, labels(7, 4));
    let heads = context.into_auxiliary();
    assert_eq!(heads.len(), 2);
    let aside = heads.into_iter().map(|head| plain.loss(head, labels(7, 4)));
    let aside = aside.reduce(|a, b| a + b).unwrap().mul_scalar(0.3);
    let loss = (main + aside).div_scalar(7.0);
    let by_hand = f64::from(loss.clone().into_scalar::<f32>());
    assert!((f64::from_bits(losses.0) - by_hand).abs() < 1e-6);
    let by_hand = GradientsParams::from_grads(loss.backward(), &layers);
    let found = gradients_of(&layers, &gradients);
    assert_eq!(found.len(), 10);
    assert_close(&found, &gradients_of(&layers, &by_hand), 1e-5);
}

#[test]
fn outputs_are_kept_when_asked_for_and_only_then() {
    let pipeline = built(tagger(), 2, OneForwardOneBackward, 4, Recompute::Always);
    let step = pipeline.train_step(text(8), &objective()).unwrap();
    assert!(step.outputs.is_none());
    let step = pipeline.train_step(text(8).keep_outputs(), &objective());
    let outputs = step.unwrap().outputs.unwrap();
    let expected = pipeline.infer((text(8).input, text(8).side)).unwrap();
    assert_eq!(tensor_bits(outputs), tensor_bits(expected));
}

#[test]
fn a_batch_without_weight_is_an_error() {
    let pipeline = built(tagger(), 2, GPipe, 2, Recompute::Always);
    let mut batch = text(4);
    batch.target = batch.target.mul_scalar(0).add_scalar(PADDING);
    let error = pipeline.train_step(batch, &objective()).unwrap_err();
    assert!(matches!(error, StepError::NoWeight(0.0)));
}

#[test]
fn smoothing_is_pytorchs() {
    // torch.nn.functional.cross_entropy([[1, 2, 3], [1, 0, -1]], [2, 1], label_smoothing=0.1,
    // reduction="sum"), by its formula: 0.9 · nll + 0.1 / 3 · Σ nll over the classes.
    let logits = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [1.0, 0.0, -1.0]], &cpu());
    let target = Tensor::<1, Int>::from_ints([2, 1], &cpu());
    let log_sum = (1f64.exp() + 2f64.exp() + 3f64.exp()).ln();
    let first = 0.9 * (log_sum - 3.0) + 0.1 / 3.0 * (3.0 * log_sum - 6.0);
    let log_sum = (1f64.exp() + 1.0 + (-1f64).exp()).ln();
    let second = 0.9 * log_sum + 0.1 / 3.0 * (3.0 * log_sum);
    let loss = CrossEntropy::new().with_smoothing(0.1).loss(logits, target);
    assert!((f64::from(loss.into_scalar::<f32>()) - first - second).abs() < 1e-5);
}

#[test]
fn bad_batches_are_errors() {
    let pipeline = built(dense(&[4, 2]), 1, GPipe, 2, Recompute::Always);
    let step = |samples, targets| {
        let input = Tensor::zeros([samples, 4], &cpu());
        let target = Tensor::zeros([targets, 2], &cpu());
        let step = pipeline.train_step((input, target), &SQUARED);
        step.unwrap_err().to_string()
    };
    assert_eq!(step(0, 0), "the batch is empty");
    let expected = "the batch has 4 samples in its input, but 3 in its target";
    assert_eq!(step(4, 3), expected);
    let error = pipeline.infer(Tensor::zeros([0, 4], &cpu())).unwrap_err();
    assert!(matches!(error, StepError::EmptyBatch));
}

/// Micro-batches that a batch brings are those that it would be split into; others count by their weight.
#[test]
fn a_batch_may_bring_its_own_micro_batches() {
    let (input, target) = (vectors(6, 3), labels(6, 2));
    let part = |samples: Range<usize>| {
        let (input, target) = (input.clone(), target.clone());
        (input.slice(samples.clone()), target.slice(samples))
    };
    let objective = CrossEntropy::new();
    for stages in [1, 2] {
        let builder = Pipeline::builder(doc_example::Dense::layers(&[3, 4, 2])).micro_batches(3);
        let pipeline = builder.devices(vec![cpu(); stages]).build().unwrap();
        let run = |batch: Batch<Tensor<2>, Tensor<1, Int>>| {
            let step = pipeline.train_step(batch, &objective).unwrap();
            let gradients = gradients_of(&pipeline, &step.gradients);
            (step.loss, gradients, step.micro_batches)
        };
        let whole = run(part(0..6).into());
        let equal = Batch::from(part(0..2)).and(part(2..4)).and(part(4..6));
        assert!(run(equal) == whole);
        let (loss, gradients, sizes) = run(Batch::from(part(0..1)).and(part(1..6)));
        assert_eq!(sizes, [1, 5]);
        assert!((loss - whole.0).abs() < 1e-6);
        assert_close(&gradients, &whole.1, 1e-5);
        let uneven = Batch::from((part(0..2).0, part(0..1).1)).and(part(2..4));
        let error = pipeline.train_step(uneven, &objective).unwrap_err();
        assert_contains(&error, "2 samples in its input, but 1 in its target");
    }
}
