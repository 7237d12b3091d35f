//! Trains a language model on a text, byte by byte, in two stages, and generates text.
//!
//! ```sh
//! cargo run --release -p train-text -- [PATH]
//! ```
//!
//! `PATH` is a text file or a folder of them; without it, the text is included. This file has all
//! steps: windows, the loop, the learning rate, the update, the test, a sample of text.

use std::{env, error::Error, path::PathBuf, process::ExitCode};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    optim::AdamWConfig,
    tensor::Device,
};
use stovepipe::{prelude::*, train::data::shuffled};
use stovepipe_text::{
    NGram, PADDING, Split, SplitSettings, Text, TextBatcher, TokenWindows, Tokenizer,
};
use stovepipe_transformer::{LmConfig, LmLayer, Sampling, continue_text};

/// The settings.
#[derive(Clone, Copy)]
struct TextRecipe {
    layers: usize,
    width: usize,
    heads: usize,
    length: usize,
    batch_size: usize,
    epochs: usize,
    learning_rate: f64,
}

const RECIPE: TextRecipe = TextRecipe {
    layers: 4,
    width: 128,
    heads: 4,
    length: 128,
    batch_size: 32,
    epochs: 4,
    learning_rate: 2e-3,
};

const SEED: u64 = 42;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let text = match env::args().nth(1).map(PathBuf::from) {
        Some(path) => Text::read(&path)?,
        None => Text::embedded()?,
    };
    train(&text, &RECIPE).map(|_| ())
}

/// Trains a model. Returns its perplexity on held-out text, and that of an n-gram model.
fn train(text: &Text, recipe: &TextRecipe) -> Result<(f64, f64), Box<dyn Error>> {
    // The text: its last tenth is held out.
    let tokenizer = Tokenizer::bytes(); // or Tokenizer::read("tokenizer.json".as_ref())?
    let tokens = text.encode(&tokenizer)?;
    let settings = SplitSettings {
        length: recipe.length,
        ..SplitSettings::default()
    };
    let Split { training, held_out } = Split::new(tokens, &settings)?;
    let ngram = NGram::fit(training.tokens(), tokenizer.vocabulary(), 5)?;
    let baseline = ngram.perplexity(held_out.tokens());

    // The model: a list of layers in two stages. The softmax shares the weights of the embedding, even
    // on another device.
    let device = Device::flex(); // or Device::cuda(0), Device::cuda(1)
    let (vocabulary, length) = (tokenizer.vocabulary(), recipe.length);
    let &TextRecipe {
        layers,
        width,
        heads,
        ..
    } = recipe;
    let config = LmConfig::new(vocabulary, length, layers, width, heads);
    let layers = config.with_dropout(0.1).with_tied(true).init(&device)?;
    let mut pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device.clone()])
        .micro_batches(4)
        .seed(SEED)
        .build()?;
    println!("{pipeline}");

    let objective = CrossEntropy::new().ignoring(PADDING.into());
    let mut optimizer = AdamWConfig::new()
        .with_weight_decay(0.1)
        .with_epsilon(1e-8) // as in PyTorch; Burn's default is 1e-5
        .init();
    let batches = training.len().div_ceil(recipe.batch_size);
    let steps = (recipe.epochs * batches) as f64;
    for epoch in 0..recipe.epochs {
        let batcher = TextBatcher::shifted(SEED, epoch);
        let order = shuffled(training.len(), SEED, epoch);
        for (batch, places) in order.chunks(recipe.batch_size).enumerate() {
            let windows = training.get_many(places.to_vec())?;
            let (inputs, targets) = batcher.batch(windows, &device);
            let step = pipeline.train_step((inputs, targets), &objective)?;
            let progress = (epoch * batches + batch) as f64 / steps;
            if batch % 20 == 0 {
                println!("epoch {epoch}, {batch}/{batches}: loss {:.3}", step.loss);
            }
            // Rises for a twentieth of the steps, then falls like half a cosine.
            let rate = recipe.learning_rate
                * f64::min(
                    20.0 * progress + 1.0 / steps,
                    0.5 + 0.5 * (std::f64::consts::PI * progress).cos(),
                );
            pipeline = optimizer.step(rate, pipeline, step.gradients);
        }
        let perplexity = perplexity(&pipeline, &held_out, recipe.batch_size)?;
        println!("epoch {epoch}: perplexity {perplexity:.3}; n-grams have {baseline:.3}");
    }

    let prompt = &held_out.tokens()[..recipe.length.min(64)];
    let sampling = Sampling {
        temperature: 0.8,
        seed: SEED,
        ..Sampling::default()
    };
    let written = continue_text(&pipeline, prompt, 200, &sampling)?;
    let [prompt, written] = [prompt, &written].map(|tokens| tokenizer.decode(tokens));
    println!("{}[…]{}", prompt?, written?);
    let perplexity = perplexity(&pipeline, &held_out, recipe.batch_size)?;
    Ok((perplexity, baseline))
}

/// e to the mean loss over all held-out tokens.
fn perplexity(
    pipeline: &Pipeline<LmLayer>,
    windows: &TokenWindows,
    batch_size: usize,
) -> Result<f64, Box<dyn Error>> {
    let objective = CrossEntropy::new().ignoring(PADDING.into());
    let places: Vec<_> = (0..windows.len()).collect();
    let (mut loss, mut tokens) = (0.0_f64, 0.0);
    for places in places.chunks(batch_size) {
        let windows = windows.get_many(places.to_vec())?;
        let (inputs, targets) = TextBatcher::default().batch(windows, &Device::flex());
        let evaluated = pipeline.evaluate((inputs, targets), &objective)?;
        loss += evaluated.loss * evaluated.weight;
        tokens += evaluated.weight;
    }
    Ok((loss / tokens).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_what_can_be_learned() -> Result<(), Box<dyn Error>> {
        let text = Text::new(["she sells sea shells by the sea shore, ".repeat(120)]);
        let recipe = TextRecipe {
            layers: 2,
            width: 32,
            heads: 2,
            length: 32,
            batch_size: 8,
            epochs: 30,
            learning_rate: 5e-3,
        };
        let (perplexity, _) = train(&text, &recipe)?;
        assert!(perplexity < 1.3, "{perplexity}");
        Ok(())
    }
}
