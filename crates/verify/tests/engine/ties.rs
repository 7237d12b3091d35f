//! Parameters that several layers share.

use burn::nn::Initializer;

use crate::{models::*, ranks::assert_no_cut_shows};

pub const WORDS: usize = 7;
const WIDTH: usize = 5;

/// Words to vectors and back, by one table.
#[derive(Module, Debug)]
pub enum Words {
    Embed(Table),
    Mix(Linear),
    Softmax(Table),
    /// The same table twice within a layer.
    Both(Twice),
}

#[derive(Module, Debug)]
pub struct Table {
    pub weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
pub struct Twice {
    first: Table,
    second: Table,
}

#[derive(Clone, Debug, Flow)]
pub enum Value {
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
pub fn words() -> Vec<Words> {
    let (mean, std) = (0.0, 1.0);
    let weight = Initializer::Normal { mean, std }.init([WORDS, WIDTH], &cpu());
    let table = || Table {
        weight: weight.clone(),
    };
    let mix = || Words::Mix(linear(WIDTH, WIDTH));
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

fn step(pipeline: &Pipeline<Words>) -> Step<Words> {
    train(pipeline, labels(6, WORDS), WORDS).unwrap()
}

#[track_caller]
fn assert_tied(tables: &[Vec<u32>]) {
    assert!(tables.iter().all(|table| table == &tables[0]));
}

#[test]
fn places_of_a_parameter_stay_equal_and_no_cut_shows() {
    let mut optimizer = AdamConfig::new().init();
    let mut pipeline = built(words(), 1, GPipe, 3, Recompute::Never);
    let before = tables(&pipeline);
    for _ in 0..3 {
        let tables = tables(&pipeline);
        assert_eq!(tables.len(), 4);
        assert_tied(&tables);
        let gradients = step(&pipeline).gradients;
        pipeline = optimizer.step(0.05, pipeline, gradients);
    }
    let after = tables(&pipeline);
    assert_tied(&after);
    assert_ne!(before, after, "the table is trained");
    let inputs = (labels(6, WORDS), labels(3, WORDS));
    assert_no_cut_shows(words, 3, inputs, WORDS);
}

/// Plain Burn sums the gradients where all places hold the same tensor.
#[test]
fn the_gradient_is_the_sum_over_all_places() {
    let pipeline = built(words(), 5, GPipe, 2, Recompute::Always);
    let found = gradients_of(&pipeline, &step(&pipeline).gradients);

    let mut layers: Vec<Words> = pipeline.layers().to_vec();
    let Words::Embed(table) = layers[0].clone() else {
        panic!("the first layer embeds");
    };
    layers[4] = Words::Softmax(table.clone());
    let (first, second) = (table.clone(), table.clone());
    layers[2] = Words::Both(Twice { first, second });
    let input = labels(6, WORDS).autodiff();
    let expected = plain_gradients(&layers, input, WORDS, |_| KeyedRng::none());
    assert_close(&found, &expected, 1e-5);
}

/// Each stage updates on its own worker, as in the training loop.
#[test]
fn stages_that_are_changed_by_themselves_are_tied_again() {
    let mut pipeline = built(words(), 5, GPipe, 2, Recompute::Always);
    let before = tables(&pipeline);
    let double = |weight: Tensor<2>| weight.inner().mul_scalar(2).autodiff().require_grad();
    let changed = pipeline.change_stages(vec![(); 5], move |stage, layers, ()| {
        let change = |layer| match (stage, layer) {
            (0, Words::Embed(table)) => Words::Embed(Table {
                weight: table.weight.map(double),
            }),
            (_, layer) => layer,
        };
        Ok((layers.into_iter().map(change).collect(), ()))
    });
    changed.unwrap();
    let after = tables(&pipeline);
    assert_ne!(before, after);
    assert_tied(&after);
}

/// A record has other ids.
#[test]
fn ties_outlive_a_record() {
    let build = || built(words(), 3, GPipe, 2, Recompute::Always);
    let mut optimizer = AdamConfig::new().init();
    let mut train = |pipeline: Pipeline<Words>| {
        let gradients = step(&pipeline).gradients;
        optimizer.step(0.05, pipeline, gradients)
    };
    let trained = train(build());
    let loaded = build().load_record(trained.clone().into_record());
    assert_eq!(tables(&loaded), tables(&trained));
    let loaded = train(loaded);
    let after = tables(&loaded);
    assert_tied(&after);
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
        let found = gradients_of(&pipeline, &step(&pipeline).gradients).into_iter();
        let tables = found.filter(|(_, values)| values.len() == WORDS * WIDTH);
        // Found under the name of each of its places.
        assert_eq!(tables.count(), if trained { 4 } else { 0 });
    }
}
