//! Parameters that several layers share.

use burn::{
    module::{Module, Param},
    nn::{Initializer, Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams},
    tensor::{Int, Tensor},
};
use stovepipe_pipeline::{
    Context, CrossEntropy, Flow, KeyedRng, Layer, LayerError, Objective, Pipeline, Recompute,
    run_plain,
};
use stovepipe_schedule::{GPipe, Scheduler};

use crate::models::*;

const WORDS: usize = 7;
const WIDTH: usize = 5;

/// Words to vectors and back, by one table.
#[derive(Module, Debug)]
enum Words {
    Embed(Table),
    Mix(Linear),
    Softmax(Table),
    /// The same table twice within a layer.
    Both(Twice),
}

#[derive(Module, Debug)]
struct Table {
    weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Twice {
    first: Table,
    second: Table,
}

#[derive(Clone, Debug, Flow)]
enum Value {
    Words(Tensor<1, Int>),
    Vectors(Tensor<2>),
}

impl Layer for Words {
    type Input = Tensor<1, Int>;
    type Flow = Value;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(words: Tensor<1, Int>) -> Value {
        Value::Words(words)
    }

    fn forward(&self, flow: Value, _: &mut Context<'_, Self>) -> Result<Value, LayerError> {
        Ok(Value::Vectors(match (self, flow) {
            (Self::Embed(table), Value::Words(words)) => table.weight.val().select(0, words),
            (Self::Mix(linear), Value::Vectors(x)) => linear.forward(x).tanh(),
            (Self::Softmax(table), Value::Vectors(x)) => x.matmul(table.weight.val().transpose()),
            (Self::Both(both), Value::Vectors(x)) => {
                let words = x.matmul(both.first.weight.val().transpose());
                words.tanh().matmul(both.second.weight.val())
            }
            _ => return Err(LayerError::new("words or vectors", "the other")),
        }))
    }

    fn leave(flow: Value) -> Result<Tensor<2>, LayerError> {
        match flow {
            Value::Vectors(x) => Ok(x),
            Value::Words(_) => Err(LayerError::new("vectors", "words")),
        }
    }
}

/// The table is in four places, two of them in one layer.
fn words() -> Vec<Words> {
    let shape = [WORDS, WIDTH];
    let table = Initializer::Normal {
        mean: 0.0,
        std: 1.0,
    }
    .init(shape, &cpu());
    let table = || Table {
        weight: table.clone(),
    };
    let mix = || Words::Mix(LinearConfig::new(WIDTH, WIDTH).init(&cpu()));
    let (first, second) = (table(), table());
    vec![
        Words::Embed(table()),
        mix(),
        Words::Both(Twice { first, second }),
        mix(),
        Words::Softmax(table()),
    ]
}

fn tables(pipeline: &Pipeline<Words>) -> Vec<Vec<u32>> {
    let found = bits(pipeline).into_iter();
    let found = found.filter(|(_, values)| values.len() == WORDS * WIDTH);
    found.map(|(_, values)| values).collect()
}

/// Losses, gradients and tables of three steps.
fn train(mut pipeline: Pipeline<Words>) -> Vec<Vec<Vec<u32>>> {
    let mut optimizer = AdamConfig::new().init();
    let mut seen = vec![tables(&pipeline)];
    for _ in 0..3 {
        let loss = CrossEntropy::new();
        let step = pipeline.train_step((labels(6, WORDS), labels(6, WORDS)), &loss);
        let step = step.unwrap();
        let gradients = gradient_bits(&pipeline, &step.gradients);
        seen.push(gradients.into_iter().map(|(_, bits)| bits).collect());
        pipeline = optimizer.step(0.05, pipeline, step.gradients);
        seen.push(tables(&pipeline));
    }
    seen
}

#[test]
fn places_of_a_parameter_stay_equal_and_no_cut_shows() {
    let one = built(words(), 1, GPipe, 3, Recompute::Never);
    let expected = train(one);
    for (index, tables) in expected.iter().step_by(2).enumerate() {
        assert_eq!(tables.len(), 4);
        assert!(tables.iter().all(|table| table == &tables[0]), "{index}");
    }
    assert_ne!(expected[0], expected[2], "the table is trained");
    for rule in RULES {
        for workers in (1..=5).filter(|&workers| rule.stages(workers) <= 5) {
            for recompute in Recompute::ALL {
                let pipeline = built(words(), workers, rule, 3, recompute);
                let found = train(pipeline);
                assert_eq!(found, expected, "{workers} workers, {rule:?}, {recompute}");
            }
        }
    }
}

/// Plain Burn sums the gradients where all places hold the same tensor.
#[test]
fn the_gradient_is_the_sum_over_all_places() {
    let pipeline = built(words(), 5, GPipe, 2, Recompute::Always);
    let loss = CrossEntropy::new();
    let step = pipeline.train_step((labels(6, WORDS), labels(6, WORDS)), &loss);
    let found = gradients_of(&pipeline, &step.unwrap().gradients);

    let mut layers: Vec<Words> = pipeline.layers().to_vec();
    let Words::Embed(table) = layers[0].clone() else {
        panic!("the first layer embeds");
    };
    layers[4] = Words::Softmax(table.clone());
    let (first, second) = (table.clone(), table.clone());
    layers[2] = Words::Both(Twice { first, second });
    let input = labels(6, WORDS).autodiff();
    let plain = run_plain(&layers, input, &(), |_| KeyedRng::none()).unwrap();
    let loss = loss.loss(plain.output, labels(6, WORDS).autodiff());
    let gradients = GradientsParams::from_grads(loss.div_scalar(6).backward(), &layers);
    let expected = gradients_of(&pipeline, &gradients);
    assert_eq!(found.len(), expected.len());
    for ((path, found), (_, expected)) in found.iter().zip(&expected) {
        let difference = relative_difference(found, expected);
        assert!(difference < 1e-5, "{path}: {difference}");
    }
}

/// Each stage updates on its own worker, as in the training loop.
#[test]
fn stages_that_are_changed_by_themselves_are_tied_again() {
    let mut pipeline = built(words(), 5, GPipe, 2, Recompute::Always);
    let before = tables(&pipeline);
    pipeline
        .change_stages(vec![(); 5], |stage, layers, ()| {
            let change = |layer| match (stage, layer) {
                (0, Words::Embed(table)) => Words::Embed(Table {
                    weight: table
                        .weight
                        .map(|weight| weight.inner().mul_scalar(2).autodiff().require_grad()),
                }),
                (_, layer) => layer,
            };
            (layers.into_iter().map(change).collect(), ())
        })
        .unwrap();
    let after = tables(&pipeline);
    assert_ne!(before, after);
    assert!(after.iter().all(|table| table == &after[0]));
}

/// A record has other ids.
#[test]
fn ties_outlive_a_record() {
    let build = || built(words(), 3, GPipe, 2, Recompute::Always);
    let mut optimizer = AdamConfig::new().init();
    let mut train = |pipeline: Pipeline<Words>| {
        let step = pipeline.train_step((labels(6, WORDS), labels(6, WORDS)), &CrossEntropy::new());
        optimizer.step(0.05, pipeline.clone(), step.unwrap().gradients)
    };
    let trained = train(build());
    let loaded = build().load_record(trained.clone().into_record());
    assert_eq!(tables(&loaded), tables(&trained));
    let loaded = train(loaded);
    let after = tables(&loaded);
    assert!(after.iter().all(|table| table == &after[0]));
    assert_ne!(after, tables(&trained));
}

/// The owner decides whether the parameter is trained.
#[test]
fn a_parameter_is_frozen_where_its_owner_is() {
    for (owner_frozen, trained) in [(true, false), (false, true)] {
        let mut layers = words();
        let place = if owner_frozen { 0 } else { 4 };
        layers[place] = layers[place].clone().freeze();
        let pipeline = built(layers, 5, GPipe, 2, Recompute::Always);
        let step = pipeline.train_step((labels(6, WORDS), labels(6, WORDS)), &CrossEntropy::new());
        let found = gradients_of(&pipeline, &step.unwrap().gradients);
        let tables = found
            .iter()
            .filter(|(_, values)| values.len() == WORDS * WIDTH);
        // Found under the name of each of its places.
        assert_eq!(tables.count(), if trained { 4 } else { 0 });
    }
}
