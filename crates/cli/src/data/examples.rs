//! Examples of which some tokens are learned, as batches.

use std::rc::Rc;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::InMemDataset},
    tensor::{Device, Int, Tensor, TensorData},
};
use stovepipe::{
    schedule::count,
    train::{Data, data::Fingerprint},
};
use stovepipe_chat::Example;
use stovepipe_text::PADDING;

use super::text_sets::TextSets;

/// Input tokens `[n, length]` and targets, each the token after its input if it is learned. Examples end
/// with padding: causal attention sees nothing of it.
pub struct ExampleBatcher;

impl Batcher<Example, (Tensor<2, Int>, Tensor<2, Int>)> for ExampleBatcher {
    fn batch(&self, items: Vec<Example>, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
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
}

/// Examples to train on and others to test with, which are to be answered exactly.
pub fn sets(
    training: Vec<Example>,
    testing: Vec<Example>,
    fingerprint: Fingerprint,
    about: &str,
) -> TextSets {
    let (train, test) = (training.len(), testing.len());
    let answers = testing.clone();
    let data = Data::new(
        InMemDataset::new(training),
        InMemDataset::new(testing),
        ExampleBatcher,
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
        ];
        let (inputs, targets) = ExampleBatcher.batch(items, &Device::flex());
        let numbers = |x: Tensor<2, Int>| x.into_data().iter::<i32>().collect::<Vec<_>>();
        assert_eq!(numbers(inputs), [5, 6, 7, 9, 0, 0]);
        assert_eq!(numbers(targets), [PADDING, 7, 8, 4, PADDING, PADDING]);
    }
}
