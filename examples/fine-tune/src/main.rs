//! Fine-tunes a pretrained language model on conversations, with LoRA, in two stages.
//!
//! ```sh
//! cargo run --release -p fine-tune -- MODEL CHAT ADAPTER
//! ```
//!
//! `MODEL` is a folder as the Hugging Face Hub has it, of a Llama, Mistral or Qwen, with its tokenizer.
//! `CHAT` has a conversation in each line, as JSON. `ADAPTER` is a new folder for `peft`. This file has
//! all steps: the model, the adapter, the conversations, the loop, the files.

use std::{env, error::Error, fs, path::Path, process::ExitCode};

use burn::{
    optim::AdamWConfig,
    tensor::{Device, FloatDType, Int, Tensor, TensorData},
};
use stovepipe::{
    prelude::*,
    train::{Weights, data::shuffled, weights::save_some},
};
use stovepipe_chat::{ChatTemplate, ChatTokenizer, Encoder, Example, Examples};
use stovepipe_decoder::{DecoderConfig, DecoderLayer, LoraConfig};

const BATCH: usize = 8;
const EPOCHS: usize = 3;
const LEARNING_RATE: f64 = 2e-4;
/// The most tokens of a conversation.
const LENGTH: usize = 512;
/// The target of a token after which nothing is learned.
const IGNORED: i64 = -1;
const SEED: u64 = 42;

fn main() -> ExitCode {
    let paths: Vec<_> = env::args().skip(1).collect();
    let [model, chat, adapter] = &paths[..] else {
        eprintln!("usage: fine-tune MODEL CHAT ADAPTER");
        return ExitCode::FAILURE;
    };
    match tune(
        model.as_ref(),
        chat.as_ref(),
        adapter.as_ref(),
        LEARNING_RATE,
    ) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Trains an adapter. Returns the losses of the first and the last mini-batch.
fn tune(model: &Path, chat: &Path, adapter: &Path, rate: f64) -> Result<[f64; 2], Box<dyn Error>> {
    // The model: a list of layers, frozen, with an adapter in each linear layer. Its weights are zeros
    // until they are loaded, one tensor at a time, each to its device.
    let device = Device::flex(); // or Device::cuda(0), Device::cuda(1)
    let config = DecoderConfig::open(model)?;
    let lora = LoraConfig {
        dropout: 0.05,
        ..LoraConfig::new(8)
    };
    let layers = config.init_to_load(FloatDType::F32, &device)?; // or BF16
    let layers = lora.add_to(layers, &config, &device)?;
    let mut pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device])
        .micro_batches(4)
        .seed(SEED)
        .build()?;
    let weights = Weights::open(model)?.renamed(&config.hub_keys())?;
    let own = config.clone();
    let weights = weights.allowing_missing(move |name| own.hub_name(name).is_none());
    weights.load_into(&mut pipeline)?;
    println!("{pipeline}");

    // The conversations: the loss counts what the assistant says.
    let (tokenizer, template) = (
        ChatTokenizer::of_folder(model)?,
        ChatTemplate::of_folder(model)?,
    );
    tokenizer.check_vocabulary(config.vocabulary)?;
    let examples = Examples::read(chat, &Encoder::new(tokenizer, Some(template)), Some(LENGTH))?;
    println!("{:?}", examples.counts);
    let examples = examples.list;

    let objective = CrossEntropy::new().ignoring(IGNORED);
    let mut optimizer = AdamWConfig::new()
        .with_weight_decay(0.0)
        .with_epsilon(1e-8) // as in PyTorch; Burn's default is 1e-5
        .init();
    let mut losses = Vec::new();
    for epoch in 0..EPOCHS {
        for (batch, places) in shuffled(examples.len(), SEED, epoch)
            .chunks(BATCH)
            .enumerate()
        {
            let chosen: Vec<_> = places.iter().map(|&place| &examples[place]).collect();
            let step = pipeline.train_step(padded(&chosen), &objective)?;
            println!("epoch {epoch}, batch {batch}: loss {:.3}", step.loss);
            losses.push(step.loss);
            pipeline = optimizer.step(rate, pipeline, step.gradients);
        }
    }
    save(&pipeline, &config, &lora, (model, adapter))?;
    Ok([losses[0], losses[losses.len() - 1]])
}

/// Tokens and targets `[n, length]`. Padding is at the end, where causal attention sees nothing of it.
fn padded(examples: &[&Example]) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let longest = examples.iter().map(|example| example.tokens.len()).max();
    let shape = [examples.len(), longest.unwrap_or(2) - 1];
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for Example { tokens, learned } in examples {
        let pairs = tokens.windows(2).zip(&learned[1..]);
        let target = |next: u32, learned: bool| if learned { i64::from(next) } else { IGNORED };
        inputs.extend(pairs.clone().map(|(pair, _)| i64::from(pair[0])));
        targets.extend(pairs.map(|(pair, &learned)| target(pair[1], learned)));
        let rest = shape[1] + 1 - tokens.len();
        inputs.extend(vec![0; rest]);
        targets.extend(vec![IGNORED; rest]);
    }
    let tensor =
        |values| Tensor::from_data(TensorData::new::<i64, _>(values, shape), &Device::flex());
    (tensor(inputs), tensor(targets))
}

/// Writes the adapter as `peft` reads it.
fn save(
    pipeline: &Pipeline<DecoderLayer>,
    config: &DecoderConfig,
    lora: &LoraConfig,
    (model, adapter): (&Path, &Path),
) -> Result<(), Box<dyn Error>> {
    fs::create_dir(adapter)?;
    let path = adapter.join("adapter_model.safetensors");
    save_some(pipeline, &path, |name| config.peft_name(name))?;
    lora.save(adapter, model.to_str())?;
    println!("wrote {}", adapter.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_adapter_learns_an_answer() -> Result<(), Box<dyn Error>> {
        // A tiny random model that `transformers` wrote, with a tokenizer of a few words.
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/decoder/tests/golden/llama");
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        for name in ["config.json", "model.safetensors"] {
            fs::copy(golden.join(name), path(name))?;
        }
        let tokenizer = json!({
            "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "?": 0, "Hi": 1, "Hello": 2, ".": 3 } },
            "pre_tokenizer": { "type": "Whitespace" },
        });
        fs::write(path("tokenizer.json"), tokenizer.to_string())?;
        let template = "{% for m in messages %}{{ m.content }} . {% endfor %}";
        fs::write(path("chat_template.jinja"), template)?;
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let line = json!({ "messages": [turn("user", "Hi"), turn("assistant", "Hello")] });
        fs::write(path("chat.jsonl"), format!("{line}\n").repeat(40))?;

        let adapter = path("adapter");
        let [first, last] = tune(folder.path(), &path("chat.jsonl"), &adapter, 0.02)?;
        assert!(last < 0.5 * first, "{first} {last}");
        assert_eq!(LoraConfig::open(&adapter)?.rank, 8);
        assert!(
            Weights::open(&adapter)?
                .names()
                .any(|name| name.ends_with("lora_B.weight"))
        );
        Ok(())
    }
}
