//! What is trained less than the rest, or not at all.

use burn::store::{ModuleStore, SafetensorsStore, bridge};

use super::*;

/// The tensors of a file that are a layer's, as their bytes.
fn layer(file: &Path, index: usize) -> Vec<(String, Vec<u8>)> {
    let mut store = SafetensorsStore::from_file(file);
    let tensors = store.get_all_tensors().unwrap().values();
    let own = tensors.filter(|tensor| tensor.name.starts_with(&format!("layers.{index}.")));
    let data = |tensor| bridge::to_data(tensor).unwrap().as_bytes().to_vec();
    let own = own.map(|tensor| (tensor.name.clone(), data(tensor)));
    let mut own: Vec<_> = own.collect();
    own.sort();
    own
}

/// Plain SGD moves parameters by the gradient, times a rate that is known for each layer.
#[test]
fn rates_fall_from_layer_to_layer_towards_the_first() {
    let settings = TrainSettings {
        optimizer: OptimizerSetting::Sgd,
        momentum: 0.0,
        weight_decay: 0.0,
        clip: 0.0,
        layer_decay: 0.5,
        ..TrainSettings::default()
    };
    for stages in [1, 3] {
        let mut pipeline = pipeline(stages);
        let step = pipeline.train_step(forty_points(), &CrossEntropy::new());
        let gradients = step.unwrap().gradients;
        let of_layers = |pipeline: &Pipeline<Dense>| -> Vec<Vec<f64>> {
            pipeline.layers().iter().map(values).collect()
        };
        let slopes: Vec<_> = (pipeline.layers().iter())
            .map(|layer| all(layer, &gradients))
            .collect();
        let before = of_layers(&pipeline);
        StagedOptimizer::new(&settings, stages)
            .step(1.0, &mut pipeline, gradients, Instant::now())
            .unwrap();
        let after = of_layers(&pipeline);
        for (layer, rate) in [0.125, 0.25, 0.5, 1.0].into_iter().enumerate() {
            let moved = before[layer].iter().zip(&after[layer]).map(|(a, b)| a - b);
            for (moved, slope) in moved.zip(&slopes[layer]) {
                assert!((moved - rate * slope).abs() < 1e-6, "layer {layer}");
            }
        }
    }
}

#[test]
fn frozen_layers_stay_as_they_were_and_the_others_learn() {
    let directory = tempfile::tempdir().unwrap();
    let begin = directory.path().join("begin.safetensors");
    save_model(&pipeline(1), begin.clone()).unwrap();
    let frozen = |freeze| TrainSettings {
        freeze,
        ..settings(OptimizerSetting::AdamW, 1e-2, 3)
    };
    for (freeze, count) in [(FreezeSetting::Layers(2), 2), (FreezeSetting::Body, 3)] {
        let models = [1, 2, 4].map(|stages| {
            let folder = directory.path().join(format!("{count}-{stages}"));
            run(stages, frozen(freeze), &folder).unwrap();
            folder.join("model.safetensors")
        });
        for index in 0..4 {
            // Parameters, and the running statistics of batch norms.
            let is_same = layer(&models[0], index) == layer(&begin, index);
            assert_eq!(is_same, index < count, "{freeze:?}, layer {index}");
        }
        let bytes = models.map(|model| fs::read(model).unwrap());
        assert!(bytes[0] == bytes[1] && bytes[1] == bytes[2], "{freeze:?}");
    }
}

#[test]
fn layers_frozen_before_they_are_cut_are_trained_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let settings = TrainSettings {
        freeze: FreezeSetting::Layers(2),
        ..settings(OptimizerSetting::Sgd, 0.1, 2)
    };
    run(2, settings.clone(), &directory.path().join("after")).unwrap();
    let layers = settings.freeze.apply(layers()).unwrap();
    let before = PipelineSettings {
        stages: 2,
        ..PipelineSettings::default()
    };
    let builder = before.builder(layers, sample).unwrap();
    let mut trainer = trainer(builder.seed(3).build().unwrap(), settings);
    let folder = RunFolder::create(&directory.path().join("before")).unwrap();
    train_silently(&mut trainer, &usual_data(), &folder).unwrap();
    folder.finish().unwrap();
    let model = |run| model(&directory.path().join(run));
    assert!(model("before") == model("after"));
}

#[test]
fn something_has_to_be_left_to_train() {
    let settings = TrainSettings {
        freeze: FreezeSetting::Layers(4),
        ..TrainSettings::default()
    };
    let task = Task::classification(&settings);
    let error = Trainer::new(pipeline(2), task, settings).err().unwrap();
    let expected = "freeze is 4, but the model has 4 layers: leave at least one to train";
    assert_eq!(error.to_string(), expected);
    let alone = FreezeSetting::Body.layers(1).unwrap();
    assert_eq!(alone, 0);
}

#[test]
fn what_is_frozen_is_written_in_two_ways() {
    let three = FreezeSetting::Layers(3);
    for (text, freeze) in [("body", FreezeSetting::Body), ("3", three)] {
        assert_eq!(text.parse(), Ok(freeze));
        assert_eq!(String::from(freeze), text);
    }
    let error = "head".parse::<FreezeSetting>().unwrap_err();
    assert!(error.to_string().contains("body"));
    assert!("-1".parse::<FreezeSetting>().is_err());
}
