//! The same as `peft`.

use std::collections::BTreeSet;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, FloatDType, Tensor},
};
use stovepipe_decoder::{DecoderConfig, DecoderLayer, LoraConfig, Targets};
use stovepipe_pipeline::{Recompute, TokenLogits, count_parameters};

use crate::common::{self, Golden, MODELS, adapted, folder, pipeline};

#[test]
fn adapters_compute_what_peft_computes() {
    for model in MODELS {
        let config = common::config(model);
        let mut golden = Golden::open(&folder(model).join("adapter"));
        for stages in 1..=4 {
            let pipeline = adapted(model, stages, FloatDType::F32);
            let what = format!("adapter of {model} in {stages} stages");
            common::check(&pipeline, &mut golden, |name| config.peft_name(name), &what);
        }
    }
}

#[test]
fn merged_weights_are_those_of_peft() {
    for model in MODELS {
        let [base, adapted] = [pipeline, adapted].map(|make| make(model, 1, FloatDType::F32));
        let expected = Golden::open(&folder(model).join("adapter")).all("merged/");
        let mut found = BTreeSet::new();
        for (index, (base, layer)) in base.layers().iter().zip(adapted.layers()).enumerate() {
            for (name, weight) in weights(base) {
                let Some(delta) = layer.lora_delta(&name) else {
                    continue;
                };
                let name = format!("model.layers.{}.{name}.weight", index - 1);
                common::close(&common::floats(weight + delta), &expected[&name], &name);
                found.insert(name);
            }
        }
        assert!(found.iter().eq(expected.keys()), "{model}: {found:?}");
    }
}

/// The weights of a block's linear layers.
fn weights(layer: &DecoderLayer) -> Vec<(String, Tensor<2>)> {
    #[derive(Default)]
    struct Weights(Vec<String>, Vec<(String, Tensor<2>)>);

    impl ModuleVisitor for Weights {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let (2, Some(name)) = (D, self.0.join(".").strip_prefix("Block.")) {
                let name = name.trim_end_matches(".weight").to_owned();
                let shape: [usize; 2] = param.shape().dims();
                self.1.push((name, param.val().inner().reshape(shape)));
            }
        }
    }

    let mut weights = Weights::default();
    layer.visit(&mut weights);
    weights.1
}

/// An adapter that is not trained yet changes no bit, whatever is drawn; and there is nothing of W's shape
/// among the gradients.
#[test]
fn a_new_adapter_changes_nothing() {
    let (config, device) = (common::config("qwen2"), Device::flex());
    let lora = LoraConfig::new(3);
    let layers = config.init_to_load(FloatDType::F32, &device).unwrap();
    let layers = lora.add_to(layers, &config, &device).unwrap();
    let mut with = common::builder(layers, 2).seed(5).build().unwrap();
    common::load(&config, &folder("qwen2"), &mut with);
    let without = pipeline("qwen2", 2, FloatDType::F32);
    let mut golden = Golden::open(&folder("qwen2"));
    let (tokens, targets) = (golden.ints::<2>("tokens"), golden.ints::<2>("targets"));
    let [found, expected] =
        [&with, &without].map(|one| one.infer(tokens.clone()).unwrap().logits());
    assert_eq!(found.to_data(), expected.to_data());

    let step = with
        .train_step((tokens, targets), &common::objective())
        .unwrap();
    let gradients = common::by_name(with.layers(), &step.gradients, |name| Some(name.to_owned()));
    assert_eq!(gradients.len(), 2 * 7 * 2);
    assert!(
        gradients.keys().all(|name| name.contains(".lora.")),
        "{gradients:?}"
    );
    // B is zero, so A has no gradient yet.
    let is_zero = |name: &str| gradients[name].iter().all(|x| *x == 0.0);
    assert!(is_zero("layers.1.mlp.up_proj.lora.a") && !is_zero("layers.1.mlp.up_proj.lora.b"));
}

/// The same bits for any cut and recompute mode, with dropout.
#[test]
fn cuts_change_no_bit() {
    let (config, device) = (common::config("qwen3"), Device::flex());
    let lora = LoraConfig {
        dropout: 0.3,
        ..LoraConfig::new(4)
    };
    let mut golden = Golden::open(&folder("qwen3"));
    let (tokens, targets) = (golden.ints::<2>("tokens"), golden.ints::<2>("targets"));
    let run = |stages, recompute| {
        let layers = config.init_to_load(FloatDType::BF16, &device).unwrap();
        let layers = lora.add_to(layers, &config, &device).unwrap();
        let builder = common::builder(layers, stages).recompute(recompute);
        let mut pipeline = builder.build().unwrap();
        common::load(&config, &folder("qwen3"), &mut pipeline);
        common::load_adapter(&config, &folder("qwen3").join("adapter"), &mut pipeline);
        let step = pipeline.train_step((tokens.clone(), targets.clone()), &common::objective());
        let step = step.unwrap();
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let named = |name: &str| Some(name.to_owned());
        let gradients = common::by_name(pipeline.layers(), &step.gradients, named);
        let gradients = gradients
            .into_iter()
            .map(|(name, values)| (name, bits(values)));
        (step.loss.to_bits(), gradients.collect::<Vec<_>>())
    };
    let expected = run(1, Recompute::Never);
    for stages in 1..=4 {
        for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
            assert!(
                run(stages, recompute.clone()) == expected,
                "{stages} stages, {recompute:?}"
            );
        }
    }
}

/// Ranks, blocks and targets, by counts of parameters.
#[test]
fn targets_are_chosen_as_peft_chooses_them() {
    let config = DecoderConfig::new(50, 16, 3, 2); // the network's width is 48
    let device = Device::flex();
    let trained = |lora: &LoraConfig| {
        let layers = config.init(&device).unwrap();
        let frozen = count_parameters(&layers);
        let layers = lora.add_to(layers, &config, &device).unwrap();
        count_parameters(&layers) - frozen
    };
    let names = |names: &[&str]| Targets::Names(names.iter().map(|name| (*name).into()).collect());
    let with = |targets| LoraConfig {
        targets,
        ..LoraConfig::new(2)
    };
    let (square, wide) = (2 * (16 + 16), 2 * (16 + 48));
    assert_eq!(trained(&with(Targets::All)), 3 * (4 * square + 3 * wide));
    assert_eq!(
        trained(&with(names(&["q_proj", "up_proj"]))),
        3 * (square + wide)
    );
    let whole = ["model.layers.1.self_attn.q_proj", "layers.2.mlp.up_proj"];
    assert_eq!(trained(&with(names(&whole))), square + wide);
    let pattern = r".*layers\.[02]\..*(gate|up)_proj".to_owned();
    assert_eq!(trained(&with(Targets::Pattern(pattern))), 4 * wide);
    let blocks = LoraConfig {
        blocks: Some(vec![2]),
        rank_pattern: [("mlp.up_proj".to_owned(), 5)].into(),
        ..with(names(&["up_proj", "q_proj"]))
    };
    assert_eq!(trained(&blocks), square + 5 * (16 + 48));
}
