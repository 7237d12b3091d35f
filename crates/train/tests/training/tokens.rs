//! Language: perplexity, and padding that does not count.

use burn::nn::{Embedding, EmbeddingConfig};

use super::*;

/// Guesses the next token from the last one alone.
#[derive(Module, Debug)]
enum Bigram {
    Embed(Embedding),
    Head(Linear),
}

impl Layer for Bigram {
    type Input = Tensor<2, Int>;
    type Flow = (Tensor<2, Int>, Option<Tensor<3>>);
    type Output = Tensor<3>;
    type Side = ();

    fn enter(input: Self::Input) -> Self::Flow {
        (input, None)
    }

    fn forward(
        &self,
        (tokens, hidden): Self::Flow,
        _: &mut Context<'_, Self>,
    ) -> Result<Self::Flow, LayerError> {
        let next = match (self, hidden) {
            (Self::Embed(embedding), None) => embedding.forward(tokens.clone()),
            (Self::Head(linear), Some(hidden)) => linear.forward(hidden),
            _ => return Err(LayerError::new("another layer", "this one")),
        };
        Ok((tokens, Some(next)))
    }

    fn leave((_, logits): Self::Flow) -> Result<Self::Output, LayerError> {
        logits.ok_or_else(|| LayerError::new("logits", "none"))
    }
}

const LENGTH: usize = 6;

/// Windows of 0 1 2 3 0 1 2 3 …, each begun elsewhere; all but `tokens` of their targets are padding.
struct Cycle {
    tokens: usize,
}

impl Batcher<usize, (Tensor<2, Int>, Tensor<2, Int>)> for Cycle {
    fn batch(&self, items: Vec<usize>, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let at = |place: usize| (place % 4) as i64;
        let inputs: Vec<_> = items
            .iter()
            .flat_map(|&start| (0..LENGTH).map(move |i| at(start + i)))
            .collect();
        let target = |start: usize, i: usize| match i < self.tokens {
            true => at(start + i + 1),
            false => PADDING,
        };
        let targets: Vec<_> = items
            .iter()
            .flat_map(|&start| (0..LENGTH).map(move |i| target(start, i)))
            .collect();
        let shape = [items.len(), LENGTH];
        (
            Tensor::<1, Int>::from_ints(inputs.as_slice(), device).reshape(shape),
            Tensor::<1, Int>::from_ints(targets.as_slice(), device).reshape(shape),
        )
    }
}

fn run(tokens: usize, path: &Path) -> Summary {
    let device = Device::flex();
    let layers = vec![
        Bigram::Embed(EmbeddingConfig::new(4, 8).init(&device)),
        Bigram::Head(LinearConfig::new(8, 4).init(&device)),
    ];
    let pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device])
        .micro_batches(3)
        .build()
        .unwrap();
    let set = |samples| InMemDataset::new((0..samples).collect::<Vec<usize>>());
    let data = Data::new(set(40), set(9), Cycle { tokens }).with_task(Task::Tokens);
    let settings = TrainSettings {
        epochs: 20,
        batch_size: 8,
        ..settings(OptimizerSetting::Adam, 0.05)
    };
    let folder = RunFolder::create(path).unwrap();
    let mut trainer = Trainer::new(pipeline, settings).unwrap();
    let summary = trainer
        .run(&data, &folder, |_, _| Progress::silent())
        .unwrap();
    folder.finish().unwrap();
    summary
}

#[test]
fn perplexity_is_that_of_the_loss_and_padding_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let all = run(LENGTH, &directory.path().join("all"));
    let perplexity = all.test.perplexity.unwrap();
    assert!((perplexity.ln() - all.test.loss).abs() < 1e-9);
    // What comes next is certain.
    assert!(perplexity < 1.1, "{all:?}");
    assert_eq!(all.test.accuracy, 1.0);
    // With all but one target padded, accuracy is still a share of the others.
    let few = run(1, &directory.path().join("few"));
    assert!(few.test.perplexity.unwrap() < 1.1, "{few:?}");
    assert_eq!(few.test.accuracy, 1.0);
}
