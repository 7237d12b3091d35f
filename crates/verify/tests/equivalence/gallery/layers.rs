//! Bugs that are rebuilt in layers, which see on which worker they run.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, OnceLock},
    thread::{self, ThreadId},
};

use burn::{
    module::{Module, Param},
    nn::{Initializer, Linear},
    tensor::Tensor,
};
use stovepipe_pipeline::{
    Batch, Context, CrossEntropy, Flow, FlowMapper, Layer, LayerError, flows::attach,
};
use stovepipe_verify::{Report, Verifier};

use crate::palette::{labels, linear, pattern, table};

const FIRST: &str = "worker-0";
const SECOND: &str = "worker-1";

/// The name of the worker that runs this.
fn worker() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// A language model with a table that the first and the last layer share. A sample is a mixture of words.
#[derive(Module, Debug)]
pub enum Words {
    Embed(Table),
    Hidden(Linear),
    Head(Table),
}

#[derive(Module, Debug)]
pub struct Table {
    pub weight: Param<Tensor<2>>,
    /// If there is one, workers that do not embed have a copy that moves half as far.
    #[module(skip)]
    copy: Option<Arc<Drifting>>,
}

#[derive(Debug, Default)]
pub struct Drifting {
    first: OnceLock<Tensor<2>>,
    /// The threads of all workers that have embedded.
    embed: Mutex<HashSet<ThreadId>>,
}

impl Table {
    fn embedding(&self) -> Tensor<2> {
        if let Some(copy) = &self.copy {
            copy.embed.lock().unwrap().insert(thread::current().id());
        }
        self.weight.val()
    }

    fn weight(&self) -> Tensor<2> {
        let weight = self.weight.val();
        let Some(copy) = &self.copy else {
            return weight;
        };
        let value = weight.clone().inner();
        let first = copy.first.get_or_init(|| value.clone()).clone();
        if copy.embed.lock().unwrap().contains(&thread::current().id()) {
            return weight;
        }
        let behind = (first - value).mul_scalar(0.5);
        if weight.is_autodiff() {
            weight + attach(behind, false)
        } else {
            weight + behind
        }
    }
}

impl Layer for Words {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<2>) -> Tensor<2> {
        input
    }

    fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
        Ok(match self {
            Self::Embed(table) => x.matmul(table.embedding()),
            Self::Hidden(linear) => linear.forward(x).tanh(),
            Self::Head(table) => x.matmul(table.weight().transpose()),
        })
    }

    fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(flow)
    }
}

/// Four layers, and a batch for them.
pub fn words(copy: Option<Arc<Drifting>>) -> (Vec<Words>, Batch<Tensor<2>, Target>) {
    let (mean, std) = (0.0, 0.5);
    let weight = table(Initializer::Normal { mean, std }).weight;
    let tied = |copy| Table {
        weight: weight.clone(),
        copy,
    };
    let layers = vec![
        Words::Embed(tied(copy.clone())),
        Words::Hidden(linear(6, 6)),
        Words::Hidden(linear(6, 6)),
        Words::Head(tied(copy)),
    ];
    (layers, Batch::new(pattern([8, 7]), labels([8], 7)))
}

pub type Target = Tensor<1, burn::tensor::Int>;

/// Each worker updated its copy of tied weights by another rule. Here, the copy of the last stage moves half
/// as far as the owner.
pub fn drifting_copy(has_bug: bool) -> Report {
    let copy = has_bug.then(Arc::default);
    let (layers, batch) = words(copy);
    let verifier = Verifier::new(layers, batch, CrossEntropy::new());
    verifier.stages([1, 2]).micro_batches([3]).run().unwrap()
}

/// A value, and the workers that it has passed.
#[derive(Clone, Debug)]
pub struct Sent {
    value: Tensor<3>,
    workers: Vec<String>,
}

impl Flow for Sent {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        Self {
            value: mapper.float(self.value),
            ..self
        }
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.value.batch_sizes(sizes);
    }
}

/// From `[samples, 2, 3]` to the same shape.
#[derive(Module, Debug)]
struct Centered {
    linear: Linear,
    #[module(skip)]
    crosses: bool,
}

impl Layer for Centered {
    type Input = Tensor<3>;
    type Flow = Sent;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(value: Tensor<3>) -> Sent {
        let workers = Vec::new();
        Sent { value, workers }
    }

    fn forward(&self, flow: Sent, context: &mut Context<'_, Self>) -> Result<Sent, LayerError> {
        let Sent { value, mut workers } = flow;
        let samples = value.dims()[0];
        // The first of two workers gets a value from the second: only in schedules with several stages a
        // worker. In training, the second sends it gradients, too.
        let is_crossed = workers == [FIRST, SECOND] && worker() == FIRST && context.is_training();
        let value = match self.crosses && is_crossed {
            true => value.reshape([samples, 3, 2]),
            false => value,
        };
        if workers.last() != Some(&worker()) {
            workers.push(worker());
        }
        let centered = value.clone() - value.mean_dim(2);
        let y = self.linear.forward(centered.reshape([samples, 6])).tanh();
        let value = y.reshape([samples, 2, 3]);
        Ok(Sent { value, workers })
    }

    fn leave(flow: Sent) -> Result<Tensor<2>, LayerError> {
        Ok(flow.value.flatten(1, 2))
    }
}

/// Two messages of one size had each other's shapes. The numbers were right, so nothing failed at once.
pub fn crossed_shapes(has_bug: bool) -> Report {
    let layer = |()| Centered {
        linear: linear(6, 6),
        crosses: has_bug,
    };
    let batch = Batch::new(pattern([8, 2, 3]), labels([8], 6));
    let verifier = Verifier::new([(); 4].map(layer).to_vec(), batch, CrossEntropy::new());
    verifier.stages([1, 2, 4]).micro_batches([3]).run().unwrap()
}
