//! Layers written by `#[layer]` and `#[derive(Layers)]`.

use burn::tensor::{Distribution, Tolerance, activation::relu};
use stovepipe_pipeline::nn::Dropout;

use crate::models::*;

type Tested = Result<(), Box<dyn std::error::Error>>;

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

#[layer]
impl Dense {
    fn new(from: usize, to: usize) -> Self {
        let linear = linear(from, to);
        Self { linear }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        relu(self.linear.forward(x))
    }
}

#[derive(Module, Debug)]
struct Noisy {
    dropout: Dropout,
}

#[layer]
impl Noisy {
    fn forward(&self, x: Tensor<2>, rng: &mut KeyedRng) -> Tensor<2> {
        self.dropout.forward(x, rng)
    }
}

/// Types differ from field to field; one field is a list; dropout is used by two layers.
#[derive(Module, Debug, Layers)]
struct Model {
    #[layers(|x: Tensor<3>| -> Tensor<2> { dropout.forward(first.forward(x.flatten(1, 2)), rng) })]
    first: Dense,
    blocks: Vec<Dense>,
    #[layers(|x| relu(dropout.forward(last.forward(x), rng) * *scale))]
    last: Linear,
    #[layers(shared)]
    dropout: Dropout,
    #[layers(shared)]
    scale: f64,
}

impl Model {
    /// The fields, called one after the other, without dropout.
    fn in_one_piece(&self, x: Tensor<3>) -> Tensor<2> {
        let first = self.first.forward(x.flatten(1, 2));
        let hidden = (self.blocks.iter()).fold(first, |x, block| block.forward(x));
        relu(self.last.forward(hidden) * 0.5)
    }
}

fn model() -> Model {
    Model {
        first: Dense::new(6, 5),
        blocks: (0..3).map(|_| Dense::new(5, 5)).collect(),
        last: linear(5, 3),
        dropout: Dropout::new(0.25),
        scale: 0.5,
    }
}

#[test]
fn one_method_makes_a_layer() -> Tested {
    in_own_process(
        "short_models::one_method_makes_a_layer",
        check_one_method_makes_a_layer,
    )
}

fn check_one_method_makes_a_layer() -> Tested {
    let (dense, x) = (Dense::new(4, 4), Tensor::ones([3, 4], &cpu()));
    let mut context = Context::new(&(), false);
    let through = Layer::forward(&dense, x.clone(), &mut context)?;
    assert_eq!(through.to_data(), dense.forward(x.clone()).to_data());
    assert_eq!(Layer::name(&dense), "Dense");

    let dropout = Dropout::new(0.5);
    let noisy = Noisy { dropout };
    let rng = || KeyedRng::new(1, 2, 3, 0..3);
    let mut context = Context::new(&(), true).with_rng(rng());
    let through = Layer::forward(&noisy, x.clone(), &mut context)?;
    let expected = noisy.forward(x.clone(), &mut rng());
    assert_eq!(through.to_data(), expected.to_data());
    assert_ne!(through.to_data(), x.to_data());
    Ok(())
}

#[test]
fn fields_in_order_are_a_list_of_layers() -> Tested {
    in_own_process(
        "short_models::fields_in_order_are_a_list_of_layers",
        check_fields_in_order_are_a_list_of_layers,
    )
}

fn check_fields_in_order_are_a_list_of_layers() -> Tested {
    let (device, model) = (cpu(), model());
    let x = Tensor::random([4, 2, 3], Distribution::Default, &device);
    let expected = model.in_one_piece(x.clone());

    let layers = model.clone().into_layers();
    let names: Vec<_> = layers.iter().map(Layer::name).collect();
    assert_eq!(names, ["first", "blocks", "blocks", "blocks", "last"]);
    let plain = run_plain(&layers, x.clone(), &(), |_| KeyedRng::none())?;
    assert_eq!(plain.output.to_data(), expected.to_data());

    let pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device.clone(), device.clone()])
        .micro_batches(2)
        .build()?;
    assert_eq!(pipeline.infer(x.clone())?.to_data(), expected.to_data());

    let again = Model::from_layers(pipeline.into_layers())?;
    assert_eq!(again.blocks.len(), 3);
    let expected = model.last.weight.val().to_data();
    assert_eq!(again.last.weight.val().to_data(), expected);
    Ok(())
}

/// Gradients are those of Burn on the struct in one piece, dropout switched off.
#[test]
fn gradients_are_those_of_the_struct() -> Tested {
    in_own_process(
        "short_models::gradients_are_those_of_the_struct",
        check_gradients_are_those_of_the_struct,
    )
}

fn check_gradients_are_those_of_the_struct() -> Tested {
    let device = cpu();
    let model = Model {
        dropout: Dropout::new(0.0),
        ..model()
    };
    let x = Tensor::random([4, 2, 3], Distribution::Default, &device);
    let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 1], &device);

    let whole = model.clone().train();
    let logits = whole.in_one_piece(x.clone().autodiff());
    let loss = burn::nn::loss::CrossEntropyLossConfig::new().init(&device);
    let loss = loss.forward(logits, targets.clone().autodiff());
    let expected = GradientsParams::from_grads(loss.backward(), &whole);

    let pipeline = Pipeline::builder(model.clone().into_layers())
        .devices([device.clone(), device.clone()])
        .build()?;
    let step = pipeline.train_step((x, targets), &CrossEntropy::new())?;
    for weight in [
        &model.first.linear.weight,
        &model.blocks[1].linear.weight,
        &model.last.weight,
    ] {
        let [found, expected] = [&step.gradients, &expected]
            .map(|gradients| gradients.get::<2>(weight.id).unwrap().into_data());
        found.assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-6));
    }
    Ok(())
}

#[test]
fn mistakes_say_what_is_wrong() {
    let x = Tensor::ones([4, 2, 3], &cpu());
    let mut layers = model().into_layers();
    layers.swap(0, 1);
    let error = run_plain(&layers, x, &(), |_| KeyedRng::none()).unwrap_err();
    assert_contains(error, "expected Tensor<2>, found Tensor<3>");

    layers.pop();
    let error = Model::from_layers(layers).unwrap_err().to_string();
    assert_eq!(error, "expected the layer `last`, found no such layer");
}
