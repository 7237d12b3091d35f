//! Cells: all layers but the first and the last.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{KeyedRng, LayerError, nn::DropPath};

use crate::{
    genotype::{Choice, Genotype},
    head::AuxiliaryHead,
    operation::Operation,
};

/// A normal or a reduction cell.
///
/// It reads the outputs of the previous cell and of the one before that, brings both to the same
/// size and number of channels c, and builds five more states of them. Its output is
/// `[n, k·c, h, w]`, or `[n, k·c, ⌈h/2⌉, ⌈w/2⌉]` if it reduces, where k states make up the output.
#[derive(Module, Debug)]
pub struct Cell {
    reduce1: Operation,
    reduce2: Operation,
    operations: Vec<Operation>,
    auxiliary: Option<AuxiliaryHead>,
    drop_path: DropPath,
    inputs: [usize; 2],
    #[module(skip)]
    genotype: &'static Genotype,
}

/// What a cell reads, and how wide it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The channels of the previous cell's output, and of the one before.
    pub inputs: [usize; 2],
    /// Whether the one before is of twice the size.
    pub reduced: bool,
    /// The channels of each state in the cell.
    pub channels: usize,
    /// The probability that an operation is dropped.
    pub drop_path: f64,
}

impl Cell {
    pub(crate) fn new(genotype: &'static Genotype, place: Place, device: &Device) -> Self {
        let Place {
            inputs: [previous, before],
            reduced,
            channels,
            drop_path,
        } = place;
        let operation = |&(choice, state): &(_, usize)| {
            Operation::new(choice, channels, genotype.stride_from(state), device)
        };
        Self {
            reduce1: Operation::conv_1x1([previous, channels], 1, device),
            reduce2: if reduced {
                Operation::reduce([before, channels], device)
            } else if before == channels {
                Operation::Chain(Vec::new())
            } else {
                Operation::conv_1x1([before, channels], 1, device)
            },
            operations: (genotype.entries.as_flattened().iter())
                .map(operation)
                .collect(),
            auxiliary: None,
            drop_path: DropPath::new(drop_path).growing(),
            inputs: place.inputs,
            genotype,
        }
    }

    pub(crate) fn with_auxiliary(mut self, head: AuxiliaryHead) -> Self {
        self.auxiliary = Some(head);
        self
    }

    /// The cell's name in errors and tables.
    pub(crate) fn name(&self) -> &'static str {
        self.genotype.name
    }

    /// The auxiliary classifier of the cell's output, if it has one.
    pub(crate) fn auxiliary(&self) -> Option<&AuxiliaryHead> {
        self.auxiliary.as_ref()
    }

    /// The output, given those of the previous cell and of the one before.
    pub(crate) fn forward(
        &self,
        previous: Tensor<4>,
        before: Tensor<4>,
        rng: &mut KeyedRng,
    ) -> Result<Tensor<4>, LayerError> {
        self.check(previous.dims(), before.dims())?;
        let mut states = vec![self.reduce1.forward(previous), self.reduce2.forward(before)];
        let entries = self.genotype.entries.as_flattened();
        let entries = entries.iter().zip(&self.operations);
        let mut terms = entries.map(|(&(choice, state), operation)| (choice, state, operation));
        while let (Some(left), Some(right)) = (terms.next(), terms.next()) {
            let [left, right] = [left, right].map(|(choice, state, operation)| {
                self.keep(choice, operation.forward(states[state].clone()), rng)
            });
            states.push(left + right);
        }
        let outputs = (self.genotype.outputs.iter()).map(|&state| states[state].clone());
        Ok(Tensor::cat(outputs.collect(), 1))
    }

    /// The output of an operation, unless it is dropped; an identity never is.
    fn keep(&self, choice: Choice, output: Tensor<4>, rng: &mut KeyedRng) -> Tensor<4> {
        match choice {
            Choice::Identity => output,
            _ => self.drop_path.forward(output, rng),
        }
    }

    fn check(&self, previous: [usize; 4], before: [usize; 4]) -> Result<(), LayerError> {
        let step = if self.reduce2.halves() { 2 } else { 1 };
        let size = |[_, _, height, width]: [usize; 4]| [height, width];
        let channels_fit = [previous[1], before[1]] == self.inputs;
        if channels_fit && size(before).map(|n| n.div_ceil(step)) == size(previous) {
            return Ok(());
        }
        let [first, second] = self.inputs;
        let larger = [" and the same size", ", the second of twice the size"][step - 1];
        Err(LayerError::new(
            format!("states of {first} and {second} channels{larger}"),
            format!("{previous:?} and {before:?}"),
        ))
    }
}
