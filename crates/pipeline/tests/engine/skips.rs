//! Skips: values that pass over layers and stages.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{GradientsParams, SgdConfig},
    tensor::Tensor,
};
use stovepipe_pipeline::{
    Context, CrossEntropy, KeyedRng, Layer, LayerError, MeanOf, Objective, Pipeline, Recompute,
    SkipUse, StepError, run_plain,
};
use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler};

use crate::models::*;

/// A linear layer that adds what it takes and sends what it makes.
#[derive(Module, Debug)]
pub struct Jumping {
    linear: Linear,
    #[module(skip)]
    uses: Vec<SkipUse>,
    /// What it really does, if that differs.
    #[module(skip)]
    does: Option<Vec<SkipUse>>,
}

impl Layer for Jumping {
    flow!(Tensor<2>);

    fn skips(&self) -> Vec<SkipUse> {
        self.uses.clone()
    }

    fn forward(
        &self,
        x: Tensor<2>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<2>, LayerError> {
        let mut y = self.linear.forward(x.clone()).tanh();
        for skip in self.does.as_ref().unwrap_or(&self.uses) {
            match skip {
                SkipUse::Take(name) => y = y + context.take(name)?.mul_scalar(0.7),
                // Its input, its output, or something else.
                SkipUse::Send(name) => match name.as_str() {
                    "input" => context.send("input", x.clone()),
                    "output" => context.send("output", y.clone()),
                    name => context.send(name, y.clone() * x.clone()),
                },
            }
        }
        Ok(y)
    }
}

/// Layers as words: `+a` sends, `-a` takes.
pub fn jumping(layers: &[&str]) -> Vec<Jumping> {
    let uses = |layer: &str| {
        let words = layer.split_whitespace().map(|word| match word.split_at(1) {
            ("+", name) => SkipUse::send(name),
            (_, name) => SkipUse::take(name),
        });
        words.collect()
    };
    (layers.iter())
        .map(|layer| Jumping {
            linear: LinearConfig::new(4, 4).init(&cpu()),
            uses: uses(layer),
            does: None,
        })
        .collect()
}

/// To the next layer, far, to four, to the same stage or not, nested and crossed; from the data itself.
const LAYERS: [&str; 8] = [
    "+input",
    "+output +far",
    "-output +c",
    "-output -c",
    "-output +d",
    "-input",
    "-output -far",
    "-d",
];

fn two_steps(mut pipeline: Pipeline<Jumping>, samples: usize) -> Vec<Vec<(String, Vec<u32>)>> {
    let mut optimizer = SgdConfig::new().init();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let target = labels(samples, 4);
        let step = pipeline
            .train_step((vectors(samples, 4), target), &CrossEntropy::new())
            .unwrap();
        seen.push(gradient_bits(&pipeline, &step.gradients));
        pipeline = optimizer.step(0.1, pipeline, step.gradients);
        let output = pipeline.infer(vectors(3, 4)).unwrap();
        seen.push(vec![("output".to_owned(), tensor_bits(output))]);
    }
    seen
}

#[test]
fn skips_leave_every_bit_alone_wherever_the_model_is_cut() {
    for (samples, micro_batches) in [(7, 3), (2, 2)] {
        let one = built(jumping(&LAYERS), 1, GPipe, micro_batches, Recompute::Never);
        let expected = two_steps(one, samples);
        assert_eq!(expected[0].len(), 16);
        for rule in RULES {
            for workers in (1..=8).filter(|&workers| rule.stages(workers) <= 8) {
                for recompute in Recompute::ALL {
                    let layers = jumping(&LAYERS);
                    let pipeline = built(layers, workers, rule, micro_batches, recompute);
                    let found = two_steps(pipeline, samples);
                    assert_eq!(found, expected, "{workers} workers, {rule:?}, {recompute}");
                }
            }
        }
    }
}

/// Compares with the whole mini-batch in plain Burn.
#[test]
fn gradients_through_skips_are_those_of_the_model_in_one_piece() {
    for stages in [1, 3, 8] {
        let layers = jumping(&LAYERS);
        let pipeline = built(layers, stages, OneForwardOneBackward, 3, Recompute::Always);
        let loss = CrossEntropy::new();
        let step = pipeline.train_step((vectors(8, 4), labels(8, 4)), &loss);
        let found = gradients_of(&pipeline, &step.unwrap().gradients);

        let input = vectors(8, 4).autodiff();
        let plain = run_plain(pipeline.layers(), input, &(), |_| KeyedRng::none()).unwrap();
        let loss = loss
            .loss(plain.output, labels(8, 4).autodiff())
            .div_scalar(8);
        let gradients = GradientsParams::from_grads(loss.backward(), &pipeline);
        let expected = gradients_of(&pipeline, &gradients);
        assert_eq!(found.len(), expected.len());
        for ((path, found), (_, expected)) in found.iter().zip(&expected) {
            let difference = relative_difference(found, expected);
            assert!(difference < 1e-5, "{path}: {difference}");
        }
    }
}

#[test]
fn what_was_declared_and_what_is_done_must_agree() {
    let failing = |at: usize, does: &[&str], expected: &str| {
        for stages in [1, 4] {
            let mut layers = jumping(&["+a", "", "-a", "+b", "-b"]);
            layers[at].does = jumping(does).pop().map(|layer| layer.uses);
            let pipeline = built(layers, stages, GPipe, 2, Recompute::Always);
            let squared = MeanOf(|y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean());
            let Err(StepError::Failed(failure)) =
                pipeline.train_step((vectors(4, 4), vectors(4, 4)), &squared)
            else {
                panic!("the step should fail");
            };
            assert_eq!(failure.layer, Some((at, "Jumping".to_owned())));
            assert_eq!(failure.cause.to_string(), expected);
        }
    };
    let unsent = "it declares that it sends the skip \"a\", but did not";
    failing(0, &[""], unsent);
    failing(
        0,
        &["+a +x"],
        "it sent the skip \"x\" twice, or without declaring it",
    );
    failing(
        3,
        &["-a +b"],
        "expected a skip \"a\" that is declared and not taken yet, found these skips: []",
    );
    let untaken = "it declares that it takes the skip \"b\", but did not";
    failing(4, &[""], untaken);
    failing(
        4,
        &["-b -b"],
        "expected a skip \"b\" that is declared and not taken yet, found these skips: []",
    );
}
