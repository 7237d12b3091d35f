//! The same logits, loss, gradients and texts as `transformers`.

use std::fs;

use burn::tensor::{Device, FloatDType};
use stovepipe_decoder::{DecoderConfig, RopeScaling};
use stovepipe_pipeline::{Batch, KeyedRng, TokenLogits, run_plain};

use crate::common::{self, Golden, MODELS, folder, pipeline};

#[test]
fn models_compute_what_transformers_computes() {
    for model in MODELS {
        let config = common::config(model);
        let mut golden = Golden::open(&folder(model));
        for stages in 1..=4 {
            let pipeline = pipeline(model, stages, FloatDType::F32);
            let what = format!("{model} in {stages} stages");
            common::check(&pipeline, &mut golden, |name| config.hub_name(name), &what);
        }
    }
}

/// All files are exact in a type that is at least as wide, and blocks compute in f32.
#[test]
fn a_type_of_fewer_bits_changes_nothing_that_it_holds() {
    for (model, dtype) in [("mistral", FloatDType::BF16), ("qwen3", FloatDType::F16)] {
        let mut golden = Golden::open(&folder(model));
        let tokens = golden.ints::<2>("tokens");
        let of = |dtype| {
            pipeline(model, 2, dtype)
                .infer(tokens.clone())
                .unwrap()
                .logits()
                .to_data()
        };
        assert_eq!(of(dtype), of(FloatDType::F32), "{model}");
    }
    let mut golden = Golden::open(&folder("llama"));
    let tokens = golden.ints::<2>("tokens");
    let of = |dtype| {
        pipeline("llama", 2, dtype)
            .infer(tokens.clone())
            .unwrap()
            .logits()
            .to_data()
    };
    assert_ne!(of(FloatDType::BF16), of(FloatDType::F32));
}

#[test]
fn greedy_texts_are_those_of_transformers() {
    for model in MODELS {
        for has_adapter in [false, true] {
            let (pipeline, golden) = match has_adapter {
                false => (pipeline(model, 2, FloatDType::F32), folder(model)),
                true => (
                    common::adapted(model, 2, FloatDType::F32),
                    folder(model).join("adapter"),
                ),
            };
            let mut golden = Golden::open(&golden);
            let mut text = golden.ints::<2>("tokens").slice([0..1, 0..6]);
            let expected: Vec<i64> = golden.ints::<1>("greedy").into_data().iter().collect();
            for expected in expected {
                let logits = pipeline.infer(text.clone()).unwrap().logits();
                let last = text.dims()[1] - 1;
                let next = logits.narrow(1, last, 1).argmax(2).squeeze_dim::<2>(2);
                assert_eq!(
                    next.clone().into_scalar::<i64>(),
                    expected,
                    "{model}, {text}"
                );
                text = burn::tensor::Tensor::cat(vec![text, next], 1);
            }
        }
    }
}

#[test]
fn both_dialects_say_the_same() {
    for model in MODELS {
        let config = common::config(model);
        assert_eq!(DecoderConfig::from_json(&config.to_json()).unwrap(), config);
    }
    for model in ["llama", "mistral"] {
        let text = fs::read_to_string(folder(model).join("config.v4.json")).unwrap();
        assert!(text.contains("rope_scaling") && !text.contains("rope_parameters"));
        assert_eq!(
            DecoderConfig::from_json(&text).unwrap(),
            common::config(model)
        );
    }
    let RopeScaling::Llama3 { factor, length, .. } = common::config("llama").scaling else {
        panic!("{:?}", common::config("llama"));
    };
    assert_eq!((factor, length), (8.0, 32));
    assert_eq!(common::config("mistral").scaling, RopeScaling::Linear(4.0));
}

/// Micro-batches of unequal sizes and lengths: the loss and gradients of the padded mini-batch.
#[test]
fn a_mini_batch_may_bring_its_own_micro_batches() {
    for model in MODELS {
        let config = common::config(model);
        let mut golden = Golden::open(&folder(model));
        let (tokens, targets) = (golden.ints::<2>("tokens"), golden.ints::<2>("targets"));
        let part = |first: usize, samples: usize, length: usize| {
            [&tokens, &targets].map(|all| all.clone().slice([first..first + samples, 0..length]))
        };
        // The last has no target at all.
        let ways = [
            vec![part(0, 1, 23), part(1, 2, 17)],
            vec![part(2, 1, 1), part(1, 1, 17), part(0, 1, 23)],
        ];
        for (stages, parts) in [1, 2, 3].into_iter().zip(ways.iter().cycle()) {
            let pipeline = pipeline(model, stages, FloatDType::F32);
            let mut parts = parts
                .iter()
                .cloned()
                .map(|[input, target]| Batch::new(input, target));
            let first = parts.next().unwrap();
            let batch = parts.fold(first, Batch::and);
            let sizes: Vec<_> = batch.parts().map(|(input, ..)| input.dims()[0]).collect();
            let evaluation = pipeline
                .evaluate(batch.clone(), &common::objective())
                .unwrap();
            let step = pipeline.train_step(batch, &common::objective()).unwrap();
            assert_eq!(step.micro_batches, sizes);
            let loss = golden.floats("loss");
            let what = format!("{model} in {stages} stages, {sizes:?}");
            common::close(&[step.loss as f32], &loss, &what);
            common::close(&[evaluation.loss as f32], &loss, &what);
            let names = |name: &str| config.hub_name(name);
            let found = common::by_name(pipeline.layers(), &step.gradients, names);
            for (name, expected) in golden.all("grad/") {
                common::close(&found[&name], &expected, &format!("{what}: {name}"));
            }
        }
    }
}

/// Padding at the end changes no token before it, in one piece or in another micro-batch.
#[test]
fn padding_changes_nothing() {
    let device = Device::flex();
    let layers = common::config("qwen3").init(&device).unwrap();
    let tokens = Golden::open(&folder("qwen3")).ints::<2>("tokens");
    let run = |tokens| {
        run_plain(&layers, tokens, &(), |_| KeyedRng::none())
            .unwrap()
            .output
            .logits()
    };
    let all = run(tokens.clone());
    let short = run(tokens.slice([1..2, 0..17]));
    let [_, _, vocabulary] = all.dims();
    let of_all = all.slice([1..2, 0..17, 0..vocabulary]);
    common::close(
        &common::floats(of_all),
        &common::floats(short),
        "17 of 23 tokens",
    );
}
