//! Configurations that anybody may have written.

use std::fs;

use burn::tensor::{Device, FloatDType, Int, Tensor};
use proptest::{prelude::*, sample::Index};
use serde_json::Value;
use stovepipe_decoder::{DecoderConfig, LoraConfig};
use stovepipe_pipeline::{Pipeline, TokenLogits};

use crate::common::{MODELS, folder};

/// What may stand for any setting: right, of another kind, or absurd.
fn value() -> impl Strategy<Value = Value> {
    let words = [
        "llama",
        "qwen3",
        "silu",
        "default",
        "llama3",
        "all-linear",
        "q_proj",
        "(",
        ".*",
        "",
    ];
    let number = prop::sample::select(vec![-1, 0, 1, 2, 3, 4, 8, 16, 63, i64::MAX, i64::MIN]);
    let float = prop::sample::select(vec![-1.0, 0.0, 1e-300, 0.5, 2.0, 1e4, 1e308]);
    let plain = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::from),
        float.prop_map(Value::from),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
    ];
    let keys = [
        "rope_type",
        "rope_theta",
        "factor",
        "type",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "q_proj",
        "layers.1.mlp.down_proj",
    ];
    let key = prop::sample::select(keys.to_vec()).prop_map(str::to_owned);
    plain.prop_recursive(2, 8, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Some settings changed, and some that older programs write added.
fn changed(text: &str, changes: Vec<(Index, Value)>) -> String {
    let mut config: Value = serde_json::from_str(text).unwrap();
    let known = config.as_object().unwrap().keys();
    let older = [
        "rope_scaling",
        "rope_theta",
        "torch_dtype",
        "attention_bias",
        "mlp_bias",
        "head_dim",
    ];
    let names: Vec<String> = known.cloned().chain(older.map(str::to_owned)).collect();
    for (name, value) in changes {
        config[name.get(&names)] = value;
    }
    config.to_string()
}

fn is_small(config: &DecoderConfig) -> bool {
    let sizes = [
        config.vocabulary,
        config.width,
        config.blocks,
        config.feed_forward,
    ];
    let heads = config.heads.saturating_mul(config.head_width);
    config.length < 1 << 20 && sizes.iter().chain([&heads]).all(|&size| size <= 128)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50_000) })]

    /// They are refused, or their model runs.
    #[test]
    fn configurations_do_no_harm(
        model in prop::sample::select(MODELS.to_vec()),
        changes in prop::collection::vec((any::<Index>(), value()), 1..4),
    ) {
        let text = fs::read_to_string(folder(model).join("config.json")).unwrap();
        let Ok(config) = DecoderConfig::from_json(&changed(&text, changes)) else {
            return Ok(());
        };
        prop_assert_eq!(DecoderConfig::from_json(&config.to_json()).unwrap(), config.clone());
        if !is_small(&config) {
            return Ok(());
        }
        let layers = config.init_to_load(FloatDType::F32, &Device::flex()).unwrap();
        let built = Pipeline::builder(layers).devices([Device::flex()]).build().unwrap();
        let tokens = Tensor::<2, Int>::zeros([1, config.length.min(3)], &Device::flex());
        let logits = built.infer(tokens).unwrap().logits();
        prop_assert_eq!(logits.dims(), [1, config.length.min(3), config.vocabulary]);
    }

    /// They are refused, or added to a model or not, by their names.
    #[test]
    fn adapters_do_no_harm(
        changes in prop::collection::vec((any::<Index>(), value()), 1..4),
    ) {
        let path = folder("qwen2").join("adapter/adapter_config.json");
        let text = fs::read_to_string(path).unwrap();
        let Ok(lora) = LoraConfig::from_json(&changed(&text, changes)) else {
            return Ok(());
        };
        let config = DecoderConfig::new(8, 8, 2, 2);
        let layers = config.init(&Device::flex()).unwrap();
        if let Ok(layers) = lora.add_to(layers, &config, &Device::flex()) {
            prop_assert_eq!(layers.len(), 4);
        }
    }
}
