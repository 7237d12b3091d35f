//! What loading a decoder and training an adapter take besides the model, counted by the allocator.
//!
//! Each case is a process of its own: this program again, so that the most that was ever allocated is that case's.

use std::{collections::BTreeMap, env, fs, path::Path, process::Command};

use burn::tensor::{Device, FloatDType, Int, Tensor};
use cap::Cap;
use safetensors::{Dtype, tensor::TensorView};
use stovepipe_decoder::{DecoderConfig, LoraConfig};
use stovepipe_pipeline::{CrossEntropy, Pipeline};
use stovepipe_train::Weights;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const CASE: &str = "STOVEPIPE_DECODER_CASE";
const FOLDER: &str = "STOVEPIPE_DECODER_FOLDER";

fn config() -> DecoderConfig {
    DecoderConfig {
        feed_forward: 1024,
        length: 64,
        ..DecoderConfig::new(2048, 256, 12, 4)
    }
}

/// Bytes of the largest tensor in a file with two bytes a number, and of all.
fn sizes() -> [f64; 2] {
    let DecoderConfig {
        width,
        feed_forward,
        blocks,
        vocabulary,
        ..
    } = config();
    let block = 4 * width * width + 3 * width * feed_forward;
    [vocabulary * width, vocabulary * width + blocks * block].map(|count| 2.0 * count as f64)
}

/// A folder as the Hub has it: two shards in bf16.
fn write(folder: &Path) {
    let config = config();
    fs::write(folder.join("config.json"), config.to_json()).unwrap();
    let square = [config.width, config.width];
    let (wide, narrow) = (
        [config.feed_forward, config.width],
        [config.width, config.feed_forward],
    );
    let mut shapes = BTreeMap::from([
        (
            "model.embed_tokens.weight".to_owned(),
            vec![config.vocabulary, config.width],
        ),
        ("model.norm.weight".to_owned(), vec![config.width]),
    ]);
    for block in 0..config.blocks {
        for (name, shape) in [
            ("self_attn.q_proj", square),
            ("self_attn.k_proj", square),
            ("self_attn.v_proj", square),
            ("self_attn.o_proj", square),
            ("mlp.gate_proj", wide),
            ("mlp.up_proj", wide),
            ("mlp.down_proj", narrow),
        ] {
            shapes.insert(
                format!("model.layers.{block}.{name}.weight"),
                shape.to_vec(),
            );
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            shapes.insert(
                format!("model.layers.{block}.{norm}.weight"),
                vec![config.width],
            );
        }
    }
    let bytes: BTreeMap<_, _> = shapes
        .iter()
        .map(|(name, shape)| (name, [0x00, 0x3c].repeat(shape.iter().product()))) // bf16's 0.0078
        .collect();
    let mut map = serde_json::Map::new();
    let shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    for (number, shard) in shards.into_iter().enumerate() {
        let own = shapes
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 2 == number);
        let views = own.map(|(_, (name, shape))| {
            map.insert(name.clone(), shard.into());
            (
                name,
                TensorView::new(Dtype::BF16, shape.clone(), &bytes[name]).unwrap(),
            )
        });
        let file = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
        fs::write(folder.join(shard), file).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

/// What the model takes, and the most that was allocated besides, in bytes.
fn measured(case: &str, folder: &Path) -> [usize; 2] {
    let (config, device, empty) = (config(), Device::flex(), ALLOCATOR.allocated());
    let layers = config.init_to_load(FloatDType::BF16, &device).unwrap();
    let layers = LoraConfig::new(4).add_to(layers, &config, &device).unwrap();
    // Weights to come take none.
    assert!(((ALLOCATOR.allocated() - empty) as f64) < 0.1 * sizes()[1]);
    let builder = Pipeline::builder(layers)
        .devices(vec![device.clone(); 2])
        .micro_batches(1);
    let mut pipeline = builder.build().unwrap();
    let weights = Weights::open(folder)
        .unwrap()
        .renamed(&config.hub_keys())
        .unwrap();
    let own = config.clone();
    let weights = weights.allowing_missing(move |name| own.hub_name(name).is_none());
    let base = weights.load_base_into(&mut pipeline).unwrap();
    assert!(!base.sum().is_empty());
    drop((weights, base));
    if case == "train" {
        let tokens = Tensor::<2, Int>::ones([1, 4], &device);
        for _ in 0..2 {
            let batch = (tokens.clone(), tokens.clone());
            let _ = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
        }
    }
    let model = ALLOCATOR.allocated() - empty;
    let peak = ALLOCATOR.max_allocated() - ALLOCATOR.allocated();
    [model, peak]
}

#[test]
fn an_adapter_needs_little_besides_the_weights() {
    const TEST: &str = "memory::an_adapter_needs_little_besides_the_weights";
    if let Ok(case) = env::var(CASE) {
        println!(
            "{:?}",
            measured(&case, Path::new(&env::var(FOLDER).unwrap()))
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let [largest, all] = sizes();
    for case in ["load", "train"] {
        let mut command = Command::new(env::current_exe().unwrap());
        let command = command.args([TEST, "--exact", "--nocapture"]);
        let output = command
            .env(CASE, case)
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers = text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        let (numbers, _) = numbers.unwrap_or_else(|| panic!("{output:?}"));
        let numbers: Vec<f64> = numbers
            .split(", ")
            .map(|number| number.parse().unwrap())
            .collect();
        let (model, besides) = (numbers[0], numbers[1]);
        println!(
            "{case}: {:.2} of the file, and {:.2} of its largest tensor besides",
            model / all,
            besides / largest
        );
        // The adapter has 4 % of these bytes.
        match case {
            "load" => {
                assert!((1.0..1.1).contains(&(model / all)), "{model} of {all}");
                assert!(besides < 2.2 * largest, "{besides} of {largest}");
            }
            // Activations, and memory for products. A gradient of all weights would take twice the file.
            _ => assert!(
                model + besides < 1.8 * all,
                "{model} and {besides} of {all}"
            ),
        }
    }
}
