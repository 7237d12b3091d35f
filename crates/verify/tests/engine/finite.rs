//! NaN and infinite values: the step fails, names the layer, and does not change the model.

use crate::models::*;

/// What a layer does with the sample whose first number is [`MARK`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// 0 / 0.
    Forward,
    /// √0, whose slope is infinite.
    Backward,
}

const MARK: f32 = 1024.0;

#[derive(Module, Debug)]
struct Flawed {
    linear: Linear,
    norm: BatchNorm,
    #[module(skip)]
    flaw: Flaw,
}

impl Layer for Flawed {
    type Input = Tensor<2>;
    type Flow = (Tensor<2>, Tensor<2>);
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<2>) -> Self::Flow {
        (input.clone(), input)
    }

    /// The second value is the model's input, for all layers.
    fn forward(&self, (x, input): Self::Flow, _: &mut Context<'_, Self>) -> Forward<Self::Flow> {
        let sound = input.clone().narrow(1, 0, 1).not_equal_elem(MARK).float();
        let sound = if x.is_autodiff() {
            sound.inner().autodiff()
        } else {
            sound
        };
        let y = self.norm.forward(self.linear.forward(x.tanh()));
        let y = match self.flaw {
            Flaw::None => y,
            Flaw::Forward => y * sound.clone() / sound,
            Flaw::Backward => y.clone() + (y.powi_scalar(2) * sound).sqrt(),
        };
        Ok((y, input))
    }

    fn leave((output, _): Self::Flow) -> Result<Tensor<2>, LayerError> {
        Ok(output)
    }
}

fn flawed(layer: usize, flaw: Flaw) -> Vec<Flawed> {
    let layer = |index| Flawed {
        linear: linear(4, 4),
        norm: norm(4),
        flaw: if index == layer { flaw } else { Flaw::None },
    };
    (0..6).map(layer).collect()
}

/// Two samples per micro-batch, one of which is marked.
fn marked(samples: usize, micro_batch: usize) -> Tensor<2> {
    let mark = Tensor::full([1, 1], MARK, &cpu());
    vectors(samples, 4).slice_assign([2 * micro_batch..2 * micro_batch + 1, 0..1], mark)
}

fn step(pipeline: &Pipeline<Flawed>, input: Tensor<2>) -> Result<f64, StepError> {
    Ok(train(pipeline, input, 4)?.loss)
}

#[test]
fn the_layer_where_it_began_is_named() {
    for rule in RULES {
        let workers = 2.min(6 / rule.stages(1));
        for flaw in [Flaw::Forward, Flaw::Backward] {
            for (layer, micro_batch) in [(0, 1), (2, 0), (3, 2), (5, 1)] {
                let build = || {
                    let layers = flawed(layer, flaw);
                    built(layers, workers, rule, 3, Recompute::ExceptLast)
                };
                let pipeline = build();
                let before = bits(&pipeline);
                let result = step(&pipeline, marked(6, micro_batch));
                let Err(StepError::NotFinite { place, .. }) = result else {
                    panic!("the step should fail");
                };
                let failure = place.unwrap();
                let expected = Some((layer, "Flawed".to_owned()));
                assert_eq!(failure.layer, expected, "{failure}");
                assert_eq!(failure.action.micro_batch, micro_batch, "{failure}");
                let is_forward = failure.action.pass == Pass::Forward;
                // A recomputed layer has failed in its forward pass before.
                assert_eq!(is_forward, flaw == Flaw::Forward, "{failure}");
                let expected = match flaw {
                    Flaw::Forward => "its output is not finite, but its input was",
                    _ => "its gradients are not finite, but those of its output were",
                };
                assert_eq!(failure.cause.to_string(), expected);
                assert_eq!((bits(&pipeline), pipeline.steps()), (before, 0));
                // The next step is that of an untouched model: same loss, same statistics.
                let untouched = build();
                let expected = step(&untouched, vectors(6, 4)).unwrap();
                assert_eq!(step(&pipeline, vectors(6, 4)).unwrap(), expected);
                assert_eq!(bits(&pipeline), bits(&untouched));
            }
        }
    }
}

#[test]
fn a_loss_and_an_input_that_are_no_numbers() {
    let by = By(Rule::GPipe, 1);
    let pipeline = || builder(flawed(9, Flaw::None), 2, by, 3, Recompute::Always);
    let sound = pipeline().build().unwrap();
    let infinite = MeanOf(|y: Tensor<2>, t: Tensor<2>| (y - t).mean().mul_scalar(f32::INFINITY));
    let error = sound.train_step((vectors(6, 4), vectors(6, 4)), &infinite);
    let expected = "the loss is not finite, but the model's output was";
    assert_contains(error.unwrap_err(), expected);

    let bad = vectors(6, 4).slice_assign([3..4, 2..3], Tensor::full([1, 1], f32::NAN, &cpu()));
    let error = step(&sound, bad.clone()).unwrap_err();
    assert_contains(&error, "the input of the model is not finite");
    assert_contains(&error, "micro-batch 1");

    // The check can be switched off.
    let lenient = pipeline().check_finite(false).build().unwrap();
    assert!(step(&lenient, bad).unwrap().is_nan());
}
