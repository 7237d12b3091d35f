//! What is refused, and what the errors say.

use std::{error::Error, fs, path::Path};

use burn::tensor::{Device, Int, Tensor};
use serde_json::{Value, json};
use stovepipe_decoder::{DecoderConfig, LoraConfig, Targets};
use stovepipe_train::Weights;

use crate::common::{self, folder};

/// All causes of an error.
fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A model's `config.json` with other values.
fn changed(model: &str, changes: Value) -> String {
    let text = fs::read_to_string(folder(model).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string()
}

#[test]
fn configurations() {
    let missing = DecoderConfig::open("nowhere").unwrap_err();
    assert!(
        text(&missing).contains("nowhere/config.json: No such file"),
        "{}",
        text(&missing)
    );
    for (model, changes, words) in [
        (
            "llama",
            json!({"model_type": "gemma"}),
            "model_type is gemma: known are llama, mistral",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "yarn"}}),
            "rope_type is yarn: known are",
        ),
        (
            "llama",
            json!({"hidden_act": "gelu"}),
            "hidden_act is gelu: known are silu",
        ),
        (
            "mistral",
            json!({"sliding_window": 32}),
            "sliding_window is 32: only attention to all",
        ),
        (
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1}),
            "sliding_window is 8",
        ),
        (
            "llama",
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor is a part of a head only",
        ),
        (
            "llama",
            json!({"rope_parameters": {"factor": 8.0}}),
            "rope_type is missing, although there is a factor: known are",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": 3}}),
            "rope_type is 3: known are",
        ),
        (
            "qwen2",
            json!({"layer_types": ["sliding_attention"]}),
            "layer_types is sliding_attention",
        ),
        (
            "qwen3",
            json!({"quantization_config": {"bits": 4, "quant_method": "gptq"}}),
            "quantization_config is gptq: only weights in f32, bf16 or f16",
        ),
        (
            "llama",
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads is 3, which does not",
        ),
        ("llama", json!({"head_dim": 7}), "head_dim is 7"),
        (
            "llama",
            json!({"vocab_size": 0}),
            "vocab_size is 0, not 1 to",
        ),
        (
            "llama",
            json!({"vocab_size": null}),
            "vocab_size is missing",
        ),
        ("llama", json!({"rms_norm_eps": -1.0}), "rms_norm_eps is -1"),
        (
            "llama",
            json!({"hidden_size": "32"}),
            "invalid type: string",
        ),
        (
            "llama",
            json!({"attention_dropout": 1.0}),
            "attention_dropout is 1",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}),
            "low_freq_factor is missing",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}),
            "factor is 0",
        ),
    ] {
        let error = DecoderConfig::from_json(&changed(model, changes)).unwrap_err();
        assert!(
            text(&error).contains(words),
            "{}, not {words}",
            text(&error)
        );
    }
    // Without the key, Mistral has a window of 4096.
    let mut long: Value = serde_json::from_str(&changed("mistral", json!({}))).unwrap();
    long["max_position_embeddings"] = 8192.into();
    assert!(DecoderConfig::from_json(&long.to_string()).is_ok());
    long.as_object_mut().unwrap().remove("sliding_window");
    let error = DecoderConfig::from_json(&long.to_string()).unwrap_err();
    assert!(
        text(&error).contains("sliding_window is 4096"),
        "{}",
        text(&error)
    );
    // Nor is one of blocks that are not there, or a type that is not named.
    for (model, changes) in [
        (
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2}),
        ),
        (
            "qwen3",
            json!({"rope_parameters": null, "rope_scaling": {"rope_type": null}}),
        ),
    ] {
        let config = DecoderConfig::from_json(&changed(model, changes));
        assert!(config.is_ok(), "{config:?}");
    }
    // A window that no text exceeds is none.
    let wide = changed("mistral", json!({"sliding_window": 4096}));
    assert_eq!(
        DecoderConfig::from_json(&wide).unwrap(),
        common::config("mistral")
    );
}

#[test]
fn adapters() {
    let (config, device) = (DecoderConfig::new(50, 16, 2, 2), Device::flex());
    let names = |name: &str| Targets::Names(vec![name.to_owned()]);
    let lora = |targets| LoraConfig {
        targets,
        ..LoraConfig::new(2)
    };
    for (lora, words) in [
        (LoraConfig::new(0), "r is 0, not 1 to"),
        (
            lora(names("c_attn")),
            "target_modules has c_attn, which matches no linear layer: there are q_proj",
        ),
        (lora(names("lm_head")), "target_modules has lm_head"),
        (lora(Targets::Names(Vec::new())), "target_modules is empty"),
        (
            lora(Targets::Pattern("(".to_owned())),
            "( is no valid pattern",
        ),
        (
            lora(Targets::Pattern("q_proj".to_owned())),
            "target_modules has q_proj",
        ),
        (
            LoraConfig {
                blocks: Some(vec![2]),
                ..LoraConfig::new(2)
            },
            "layers_to_transform is 2, but the model has blocks 0 to 1",
        ),
        (
            LoraConfig {
                dropout: 1.0,
                ..LoraConfig::new(2)
            },
            "lora_dropout is 1",
        ),
    ] {
        let layers = config.init(&device).unwrap();
        let error = lora.add_to(layers, &config, &device).unwrap_err();
        assert!(
            text(&error).contains(words),
            "{}, not {words}",
            text(&error)
        );
    }
}

/// As in PEFT, several names may match a layer.
#[test]
fn names_may_overlap() {
    let (config, device) = (DecoderConfig::new(50, 16, 2, 2), Device::flex());
    let of = |names: &[&str]| {
        let lora = LoraConfig {
            targets: Targets::Names(names.iter().map(|&name| name.to_owned()).collect()),
            ..LoraConfig::new(2)
        };
        let layers = config.init(&device).unwrap();
        stovepipe_pipeline::count_parameters(&lora.add_to(layers, &config, &device).unwrap())
    };
    assert_eq!(of(&["q_proj", "self_attn.q_proj"]), of(&["q_proj"]));
    assert!(of(&["q_proj", "v_proj"]) > of(&["q_proj"]));
}

#[test]
fn configurations_of_adapters() {
    let all = fs::read_to_string(folder("llama").join("adapter/adapter_config.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let open = |text: &str| {
        fs::write(folder.path().join("adapter_config.json"), text).unwrap();
        LoraConfig::open(folder.path())
    };
    assert!(open(&all).is_ok());
    for (changes, words) in [
        (
            json!({"use_dora": true}),
            "use_dora is true, which is not supported",
        ),
        (
            json!({"init_lora_weights": "pissa"}),
            "init_lora_weights is \"pissa\", which is not supported",
        ),
        (
            json!({"corda_config": {"cache_file": "x"}}),
            "corda_config is",
        ),
        (
            json!({"modules_to_save": ["lm_head"]}),
            "modules_to_save is [\"lm_head\"]",
        ),
        (
            json!({"peft_type": "IA3"}),
            "peft_type is IA3: known are LORA",
        ),
        (
            json!({"task_type": "SEQ_CLS"}),
            "task_type is SEQ_CLS: known are CAUSAL_LM",
        ),
        (json!({"bias": "all"}), "bias is all: known are none"),
        (json!({"r": 0}), "r is 0"),
        (json!({"target_modules": null}), "target_modules is missing"),
        (json!({"lora_alpha": "two"}), "invalid type: string"),
    ] {
        let mut config: Value = serde_json::from_str(&all).unwrap();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        let found = text(&open(&config.to_string()).unwrap_err());
        assert!(
            found.contains(words) && found.contains("adapter_config.json"),
            "{found}"
        );
    }
}

/// What `Weights` says of a folder for a model.
fn refused(folder: &Path, model: &str) -> String {
    let config = common::config(model);
    let layers = config.init(&Device::flex()).unwrap();
    let refused = Weights::open(folder).and_then(|weights| {
        let weights = weights.renamed(&config.hub_keys())?;
        let own = config.clone();
        weights
            .allowing_missing(move |name| own.hub_name(name).is_none())
            .check(&layers)
    });
    text(&refused.unwrap_err())
}

#[test]
fn shards() {
    let copy = || {
        let to = tempfile::tempdir().unwrap();
        for file in fs::read_dir(folder("mistral")).unwrap().map(Result::unwrap) {
            if file.path().is_file() {
                fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
            }
        }
        to
    };
    let index = |folder: &Path, change: &dyn Fn(&mut Value)| {
        let path = folder.join("model.safetensors.index.json");
        let mut index: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut index["weight_map"]);
        fs::write(path, index.to_string()).unwrap();
    };
    let shard = "model-00002-of-00004.safetensors";

    let folder = copy();
    fs::remove_file(folder.path().join(shard)).unwrap();
    let found = refused(folder.path(), "mistral");
    assert!(
        found.contains(&format!("its shard {shard} is missing")),
        "{found}"
    );

    let folder = copy();
    let bytes = fs::read(folder.path().join(shard)).unwrap();
    fs::write(folder.path().join(shard), &bytes[..bytes.len() - 5]).unwrap();
    let found = refused(folder.path(), "mistral");
    assert!(
        found.contains(shard) && found.contains("cut off"),
        "{found}"
    );

    for outside in [
        "../weights.safetensors",
        "/tmp/weights.safetensors",
        "a/b.safetensors",
    ] {
        let folder = copy();
        index(folder.path(), &|map| map["lm_head.weight"] = outside.into());
        let found = refused(folder.path(), "mistral");
        assert!(
            found.contains(&format!("{outside:?} lies outside of the folder")),
            "{found}"
        );
    }

    let folder = copy();
    index(folder.path(), &|map| {
        map["model.norm.weight"] = shard.into()
    });
    let found = refused(folder.path(), "mistral");
    assert!(
        found.contains("it lacks model.norm.weight, which"),
        "{found}"
    );

    let folder = copy();
    index(folder.path(), &|map| {
        drop(map.as_object_mut().unwrap().remove("model.norm.weight"))
    });
    let found = refused(folder.path(), "mistral");
    assert!(found.contains("it has model.norm.weight, which"), "{found}");

    let folder = tempfile::tempdir().unwrap();
    let found = refused(folder.path(), "mistral");
    assert!(
        found.contains("it has neither model.safetensors nor"),
        "{found}"
    );

    // Of another model.
    let found = refused(&common::folder("llama"), "mistral");
    assert!(
        found.contains("it also has") && found.contains("down_proj.bias"),
        "{found}"
    );
    let found = refused(&common::folder("qwen2"), "qwen3");
    assert!(
        found.contains("it lacks") && found.contains("q_norm"),
        "{found}"
    );
}

#[test]
fn tokens_and_lengths() {
    let device = Device::flex();
    let layers = common::config("llama").init(&device).unwrap();
    let pipeline = common::builder(layers, 2).build().unwrap();
    for (tokens, words) in [
        (
            Tensor::<2, Int>::full([1, 65], 3, &device),
            "sequences of 1 to 64 tokens",
        ),
        (
            Tensor::full([1, 5], 67, &device),
            "tokens from 0 to 66, found 67 to 67",
        ),
        (Tensor::full([1, 5], -1, &device), "tokens from 0 to 66"),
    ] {
        let found = text(&pipeline.infer(tokens).unwrap_err());
        assert!(found.contains(words), "{found}");
    }
}
