//! Examples of which some tokens are learned, as batches.

use std::rc::Rc;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::InMemDataset},
    tensor::{Device, Int, Tensor, TensorData},
};
use stovepipe::{
    pipeline::Batch,
    schedule::count,
    train::{Data, data::Fingerprint},
};
use stovepipe_chat::{Example, micro_batches};
use stovepipe_text::PADDING;

use super::text_sets::TextSets;

/// Input tokens and targets, each the token after its input if it is learned. A mini-batch is sorted by
/// length and cut into micro-batches with little padding, each as long as its longest example. Padding is at
/// the end: causal attention sees nothing of it.
pub struct ExampleBatcher {
    /// Of a mini-batch.
    pub micro_batches: usize,
}

/// Tokens of both.
pub type TextBatch = Batch<Tensor<2, Int>, Tensor<2, Int>>;

impl Batcher<Example, TextBatch> for ExampleBatcher {
    fn batch(&self, items: Vec<Example>, device: &Device) -> TextBatch {
        let lengths: Vec<_> = items.iter().map(|item| item.tokens.len()).collect();
        let groups = micro_batches(&lengths, self.micro_batches);
        let mut parts = groups.iter().map(|group| {
            let items: Vec<_> = group.iter().map(|&index| &items[index]).collect();
            padded(&items, device)
        });
        let first = parts.next().unwrap_or_else(|| padded(&[], device));
        parts.fold(first.into(), Batch::and)
    }
}

/// Inputs and targets `[n, length]`.
pub fn padded(items: &[&Example], device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let longest = items
        .iter()
        .map(|item| item.tokens.len())
        .max()
        .unwrap_or(0);
    let shape = [items.len(), longest.saturating_sub(1).max(1)];
    let mut inputs = vec![0_i32; shape[0] * shape[1]];
    let mut targets = vec![PADDING; inputs.len()];
    let rows = inputs
        .chunks_mut(shape[1])
        .zip(targets.chunks_mut(shape[1]));
    for (item, (inputs, targets)) in items.iter().zip(rows) {
        let pairs = item.tokens.windows(2).zip(item.learned.iter().skip(1));
        let places = inputs.iter_mut().zip(targets);
        for ((pair, is_learned), (input, target)) in pairs.zip(places) {
            *input = pair[0] as i32;
            if *is_learned {
                *target = pair[1] as i32;
            }
        }
    }
    let tensor =
        |values: Vec<i32>| Tensor::from_data(TensorData::new::<i32, _>(values, shape), device);
    (tensor(inputs), tensor(targets))
}

/// Examples to train on and others to test with, which are to be answered exactly.
pub fn sets(
    [training, testing]: [Vec<Example>; 2],
    micro_batches: usize,
    about: &str,
    fingerprint: Fingerprint,
) -> TextSets {
    let (train, test) = (training.len(), testing.len());
    let answers = testing.clone();
    let data = Data::new(
        InMemDataset::new(training),
        InMemDataset::new(testing),
        ExampleBatcher { micro_batches },
    );
    TextSets {
        source: Rc::new(data.with_fingerprint(fingerprint)),
        held_out: None,
        answers,
        about: format!(
            "{about}: {} to train on, {test} to test with",
            count(train, "example")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_what_is_learned() {
        let example = |tokens: &[u32], learned: &[bool]| Example {
            tokens: tokens.to_vec(),
            learned: learned.to_vec(),
        };
        let items = vec![
            example(&[5, 6, 7, 8], &[true, false, true, true]),
            example(&[9, 4], &[false, true]),
            example(&[3, 2], &[false, false]),
        ];
        let numbers = |x: &Tensor<2, Int>| x.to_data().iter::<i32>().collect::<Vec<_>>();
        let parts = |micro_batches| {
            let batch = ExampleBatcher { micro_batches }.batch(items.clone(), &Device::flex());
            let parts = batch.parts();
            parts
                .map(|(inputs, targets, ())| (numbers(inputs), numbers(targets)))
                .collect::<Vec<_>>()
        };
        let none = PADDING;
        let long = (vec![5, 6, 7], vec![none, 7, 8]);
        assert_eq!(parts(2), [(vec![9, 3], vec![4, none]), long.clone()]);
        let whole = (
            vec![9, 0, 0, 3, 0, 0, 5, 6, 7],
            vec![4, none, none, none, none, none, none, 7, 8],
        );
        assert_eq!(parts(1), [whole]);
    }
}
