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
        let target = |start: usize, i: usize| {
            let is_padded = i >= self.tokens;
            if is_padded {
                PADDING
            } else {
                at(start + i + 1)
            }
        };
        let windows = |token: &dyn Fn(usize, usize) -> i64| {
            let of_window = |&start: &usize| (0..LENGTH).map(move |i| (start, i));
            let places = items.iter().flat_map(of_window);
            let tokens: Vec<_> = places.map(|(start, i)| token(start, i)).collect();
            let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), device);
            tokens.reshape([items.len(), LENGTH])
        };
        (windows(&|start, i| at(start + i)), windows(&target))
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
    let data = Data::new(set(40), set(9), Cycle { tokens });
    let settings = TrainSettings {
        batch_size: 8,
        ..settings(OptimizerSetting::Adam, 0.05, 20)
    };
    let folder = RunFolder::create(path).unwrap();
    let task = Task::language_model(&settings);
    let mut trainer = Trainer::new(pipeline, task, settings).unwrap();
    let summary = train_silently(&mut trainer, &data, &folder).unwrap();
    folder.finish().unwrap();
    summary
}

#[test]
fn perplexity_is_that_of_the_loss_and_padding_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let all = run(LENGTH, &directory.path().join("all"));
    let perplexity = |summary: &Summary| summary.test.get("perplexity").unwrap();
    assert!((perplexity(&all).ln() - all.test.loss).abs() < 1e-9);
    // The next token is certain.
    assert!(perplexity(&all) < 1.1, "{all:?}");
    assert_eq!(accuracy(&all.test), 1.0);
    // With all but one target padded, accuracy is still a share of the others.
    let few = run(1, &directory.path().join("few"));
    assert!(perplexity(&few) < 1.1, "{few:?}");
    assert_eq!(accuracy(&few.test), 1.0);
}
