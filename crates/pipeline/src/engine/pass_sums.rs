//! Sums of what passes compute, by which runs are compared.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Bool, Int, Tensor},
};
use serde::{Deserialize, Serialize};
use stovepipe_schedule::SpanKind;

use crate::{
    engine::values::FlowGradients,
    measure::checksum::Checksum,
    model::{
        flow::{Flow, FlowMapper, every_kind},
        parameters::{ParameterVisitor, visit_parameters},
    },
};

/// A sum of what a layer computed for a micro-batch: its output and the skips it sent, or gradients. It is the same
/// under any cut and schedule, but for the kinds of backward passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassSum {
    /// The micro-batch in its mini-batch, counted from 0.
    pub micro_batch: usize,
    /// What ran: `Forward`, `Recompute`, `Backward`, or its halves `InputGradient` and `WeightGradient`.
    pub kind: SpanKind,
    /// The layer in the model, counted from 0.
    pub layer: usize,
    /// XXH3 of the bits.
    pub sum: u64,
}

impl PassSum {
    /// The order in which the passes of one micro-batch depend on each other.
    fn place(&self) -> (usize, SpanKind, usize) {
        let layer = match self.kind {
            SpanKind::Forward | SpanKind::Recompute => self.layer,
            _ => usize::MAX - self.layer,
        };
        (self.micro_batch, self.kind, layer)
    }
}

/// Those of one step, as its passes end.
#[derive(Default)]
pub(crate) struct PassSums(Mutex<Ran>);

#[derive(Default)]
struct Ran {
    sums: Vec<PassSum>,
    /// Micro-batches and layers that ran forward once.
    forward: HashSet<(usize, usize)>,
}

impl PassSums {
    pub(crate) fn take(&self) -> Vec<PassSum> {
        let mut ran = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut ran.sums)
    }

    /// After a layer's forward pass: the second one of a micro-batch is a recomputation.
    pub(crate) fn forward<F: Flow>(&self, (micro_batch, layer): (usize, usize), flows: &[&F]) {
        let mut sum = Checksum::default();
        flows.iter().for_each(|flow| add_flow(&mut sum, *flow));
        let mut ran = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = match ran.forward.insert((micro_batch, layer)) {
            true => SpanKind::Forward,
            false => SpanKind::Recompute,
        };
        ran.sums.push(PassSum {
            micro_batch,
            kind,
            layer,
            sum: sum.finish(),
        });
    }

    /// After a layer's backward pass, or a half of it.
    pub(crate) fn backward<M: Module>(
        &self,
        (micro_batch, layer): (usize, usize),
        kind: SpanKind,
        (module, parameters): (&M, Option<&GradientsParams>),
        inputs: &[&FlowGradients],
    ) {
        let mut sum = Checksum::default();
        if let Some(gradients) = parameters {
            let sum = &mut sum;
            visit_parameters(module, &mut Gradients { gradients, sum });
        }
        inputs.iter().for_each(|own| own.add_to(&mut sum));
        let mut ran = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ran.sums.push(PassSum {
            micro_batch,
            kind,
            layer,
            sum: sum.finish(),
        });
    }
}

/// In the order of micro-batches, and for each as its passes depend on each other.
pub(crate) fn in_order(mut sums: Vec<PassSum>) -> Vec<PassSum> {
    sums.sort_by_key(PassSum::place);
    sums
}

fn add_flow<F: Flow>(sum: &mut Checksum, flow: &F) {
    struct Add<'a>(&'a mut Checksum);

    impl FlowMapper for Add<'_> {
        every_kind!(self, tensor => {
            self.0.add(&tensor);
            tensor
        });
    }

    flow.clone().map(&mut Add(sum));
}

struct Gradients<'a> {
    gradients: &'a GradientsParams,
    sum: &'a mut Checksum,
}

impl ParameterVisitor for Gradients<'_> {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            self.sum.add(&gradient);
        }
    }
}
