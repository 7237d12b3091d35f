//! Shapes, errors, dropout, and texts.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::AdamConfig,
    tensor::{Device, Distribution, Int, Tensor},
};
use stovepipe_pipeline::{CrossEntropy, KeyedRng, Layer, Pipeline, run_plain};
use stovepipe_transformer::{
    BlockConfig, GenerationError, LmConfig, LmLayer, Pool, Positions, Sampling, VitConfig,
    continue_text,
};

fn device() -> Device {
    Device::flex()
}

fn tokens(shape: [usize; 2], below: i64) -> Tensor<2, Int> {
    let count = (shape[0] * shape[1]) as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, &device());
    numbers.remainder_scalar(below).reshape(shape)
}

fn logits(layers: &[LmLayer], tokens: Tensor<2, Int>) -> Result<Tensor<3>, String> {
    match run_plain(layers, tokens, &(), |_| KeyedRng::none()) {
        Ok(plain) => Ok(plain.output),
        Err(error) => Err(error.to_string()),
    }
}

fn pipeline(layers: Vec<LmLayer>, stages: usize) -> Pipeline<LmLayer> {
    let builder = Pipeline::builder(layers).devices(vec![device(); stages]);
    builder.build().unwrap()
}

fn apart(a: Tensor<3>, b: Tensor<3>) -> f32 {
    (a - b).abs().max().into_scalar()
}

#[test]
fn sequences_may_be_short_but_not_long() {
    for positions in [Positions::Learned, Positions::Sinusoidal] {
        let config = LmConfig::new(11, 6, 2, 8, 2).with_positions(positions);
        let layers = config.init(&device()).unwrap();
        let whole = logits(&layers, tokens([2, 6], 11)).unwrap();
        assert_eq!(whole.dims(), [2, 6, 11]);
        // Later tokens do not change earlier logits.
        let short = logits(&layers, tokens([2, 6], 11).narrow(1, 0, 4)).unwrap();
        let apart = apart(whole.narrow(1, 0, 4), short);
        assert!(apart < 1e-5, "{apart}");
        for length in [0, 7] {
            let error = logits(&layers, Tensor::zeros([2, length], &device())).unwrap_err();
            assert!(error.contains("sequences of 1 to 6 tokens"), "{error}");
        }
    }
}

#[test]
fn tokens_must_be_known() {
    let layers = LmConfig::new(11, 6, 1, 8, 2).init(&device()).unwrap();
    let error = logits(&layers, tokens([2, 6], 12)).unwrap_err();
    assert_eq!(error, "expected tokens from 0 to 10, found 0 to 11");
    let error = logits(&layers, tokens([1, 3], 11) - 1).unwrap_err();
    assert_eq!(error, "expected tokens from 0 to 10, found -1 to 1");
}

#[test]
fn images_must_be_of_the_models_size() {
    for pool in [Pool::ClassToken, Pool::Mean] {
        let config = VitConfig::new(8, 4, 2, 12, 3, 5).with_channels(2);
        let layers = config.with_pool(pool).init(&device()).unwrap();
        let run = |shape: [usize; 4]| {
            let images = Tensor::random(shape, Distribution::Default, &device());
            run_plain(&layers, images, &(), |_| KeyedRng::none())
        };
        assert_eq!(run([3, 2, 8, 8]).unwrap().output.dims(), [3, 5]);
        for wrong in [[3, 3, 8, 8], [3, 2, 8, 4], [3, 2, 16, 16]] {
            let error = run(wrong).unwrap_err().to_string();
            assert!(error.starts_with("expected images [n, 2, 8, 8]"), "{error}");
        }
    }
}

#[test]
fn layers_in_the_wrong_order_are_refused() {
    let mut layers = LmConfig::new(11, 6, 1, 8, 2).init(&device()).unwrap();
    let names: Vec<_> = layers.iter().map(Layer::name).collect();
    assert_eq!(names, ["Embed", "Block", "Head"]);
    layers.swap(0, 1);
    let error = logits(&layers, tokens([2, 6], 11)).unwrap_err();
    assert_eq!(error, "expected states, found tokens [2, 6]");
}

/// Attention has its own dropout, by key, and only in training.
#[test]
fn dropout_inside_attention_has_a_key() {
    let config = BlockConfig {
        attention_dropout: 0.5,
        ..BlockConfig::new(12, 3)
    };
    let block = config.init(&device()).unwrap();
    let x = Tensor::<3>::random([4, 7, 12], Distribution::Default, &device());
    let run = |x: Tensor<3>, mut rng: KeyedRng| block.forward(x, &mut rng).unwrap();
    let data = |rng| run(x.clone(), rng).into_data();
    let whole = run(x.clone(), KeyedRng::new(1, 2, 3, 0..4));
    assert_eq!(whole.to_data(), data(KeyedRng::new(1, 2, 3, 0..4)));
    assert_ne!(whole.to_data(), data(KeyedRng::new(1, 3, 3, 0..4)));
    assert_ne!(whole.to_data(), data(KeyedRng::none()));
    // The last two samples alone get the random numbers that they have in the whole batch.
    let part = run(x.clone().narrow(0, 2, 2), KeyedRng::new(1, 2, 3, 2..4));
    let apart = apart(whole.narrow(0, 2, 2), part);
    assert!(apart < 1e-6, "{apart}");
}

#[test]
fn initial_weights_are_smaller_at_the_end_of_a_branch() {
    #[derive(Default)]
    struct Deviations(Vec<(String, f32)>, Vec<String>);

    impl ModuleVisitor for Deviations {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.1.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.1.pop();
        }

        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
            let square = parameter.val().powi_scalar(2).mean().into_scalar::<f32>();
            self.0.push((self.1.join("."), square.sqrt()));
        }
    }

    let layers = LmConfig::new(50, 30, 8, 64, 4).init(&device()).unwrap();
    let mut found = Deviations::default();
    layers.visit(&mut found);
    let mut seen = 0;
    for (name, deviation) in &found.0 {
        let expected = match name {
            name if name.ends_with("output.weight") || name.ends_with("outer.weight") => 0.02 / 4.0,
            name if name.ends_with(".weight") || name.ends_with("tokens") => 0.02,
            name if name.ends_with("positions") => 0.02,
            name if name.ends_with("gamma") => 1.0,
            _ => 0.0,
        };
        let apart = (deviation - expected).abs();
        assert!(apart <= 0.1 * expected, "{name}: {deviation}");
        seen += usize::from(expected > 0.0);
    }
    assert_eq!(seen, 2 + 8 * 6 + 2);
}

/// The model learns that each token is followed by the next.
#[test]
fn a_trained_model_continues_as_it_learned() {
    let config = LmConfig::new(7, 8, 1, 16, 2).with_dropout(0.0);
    let layers = config.init(&device()).unwrap();
    let mut pipeline = pipeline(layers, 2);
    let mut optimizer = AdamConfig::new().init();
    for step in 0..150 {
        let inputs = (tokens([4, 8], 7) + step % 7).remainder_scalar(7);
        let targets = (inputs.clone() + 1).remainder_scalar(7);
        let step = pipeline.train_step((inputs, targets), &CrossEntropy::new());
        let step = step.unwrap();
        pipeline = optimizer.step(0.01, pipeline, step.gradients);
    }
    let greedy = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    // Longer than the window.
    let text = continue_text(&pipeline, &[3], 12, &greedy).unwrap();
    assert_eq!(text, [4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1]);
    let again = |seed| {
        let mut hot = greedy;
        (hot.temperature, hot.seed) = (10.0, seed);
        continue_text(&pipeline, &[3, 4], 12, &hot).unwrap()
    };
    assert_eq!(again(5), again(5));
    assert_ne!(again(5), again(6));
}

#[test]
fn bad_prompts_and_samplings_are_refused() {
    let layers = LmConfig::new(7, 8, 1, 8, 2).init(&device()).unwrap();
    let pipeline = pipeline(layers, 1);
    let error = |prompt: &[u32], temperature, top_k| {
        let mut sampling = Sampling::default();
        (sampling.temperature, sampling.top_k) = (temperature, top_k);
        continue_text(&pipeline, prompt, 1, &sampling).unwrap_err()
    };
    let empty = error(&[], 1.0, None);
    assert!(matches!(empty, GenerationError::EmptyPrompt));
    let unknown = "the prompt has token 7 at place 1, but the model knows only 0 to 6";
    assert_eq!(error(&[1, 7], 1.0, None).to_string(), unknown);
    for temperature in [f64::NAN, -1.0] {
        let error = error(&[1], temperature, None);
        assert!(matches!(error, GenerationError::Temperature(_)));
    }
    assert!(matches!(error(&[1], 1.0, Some(0)), GenerationError::TopK));
}
