//! Golden files, models from their folders, and tensors by name.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    store::{ModuleStore, SafetensorsStore, bridge},
    tensor::{Device, FloatDType, Int, Tensor, TensorData},
};
use stovepipe_decoder::{DecoderConfig, DecoderLayer, LoraConfig};
use stovepipe_pipeline::{CrossEntropy, Pipeline, PipelineBuilder, TokenLogits};
use stovepipe_train::Weights;

pub const MODELS: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

pub fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(model)
}

pub fn config(model: &str) -> DecoderConfig {
    DecoderConfig::open(folder(model)).unwrap()
}

/// A pipeline of so many stages.
pub fn builder(layers: Vec<DecoderLayer>, stages: usize) -> PipelineBuilder<DecoderLayer> {
    Pipeline::builder(layers)
        .devices(vec![Device::flex(); stages])
        .micro_batches(3)
}

/// Loads a folder's weights, which have no adapter and no second name of a table.
pub fn load(config: &DecoderConfig, folder: &Path, pipeline: &mut Pipeline<DecoderLayer>) {
    let weights = Weights::open(folder)
        .unwrap()
        .renamed(&config.hub_keys())
        .unwrap();
    let (own, tied) = (config.clone(), config.tied);
    let missing = weights
        .allowing_missing(move |name| own.hub_name(name).is_none())
        .load_into(pipeline)
        .unwrap()
        .missing;
    let is_tied = |name: &String| name.ends_with("lm_head.weight");
    assert_eq!(
        missing.iter().filter(|name| is_tied(name)).count(),
        usize::from(tied)
    );
}

pub fn load_adapter(config: &DecoderConfig, folder: &Path, pipeline: &mut Pipeline<DecoderLayer>) {
    let weights = Weights::open(folder)
        .unwrap()
        .renamed(&config.hub_keys())
        .unwrap();
    let own = config.clone();
    let missing = weights.allowing_missing(move |name| own.peft_name(name).is_none());
    missing.load_into(pipeline).unwrap();
}

/// The model of a folder in so many stages.
pub fn pipeline(model: &str, stages: usize, dtype: FloatDType) -> Pipeline<DecoderLayer> {
    let config = config(model);
    let layers = config.init_to_load(dtype, &Device::flex()).unwrap();
    let mut pipeline = builder(layers, stages).build().unwrap();
    load(&config, &folder(model), &mut pipeline);
    pipeline
}

/// The same with its adapter.
pub fn adapted(model: &str, stages: usize, dtype: FloatDType) -> Pipeline<DecoderLayer> {
    let (config, device) = (config(model), Device::flex());
    let lora = LoraConfig::open(folder(model).join("adapter")).unwrap();
    let layers = config.init_to_load(dtype, &device).unwrap();
    let layers = lora.add_to(layers, &config, &device).unwrap();
    let mut pipeline = builder(layers, stages).build().unwrap();
    load(&config, &folder(model), &mut pipeline);
    load_adapter(&config, &folder(model).join("adapter"), &mut pipeline);
    pipeline
}

/// The loss of the golden files: without targets of −100.
pub fn objective() -> CrossEntropy {
    CrossEntropy::new().ignoring(-100)
}

pub struct Golden(SafetensorsStore);

impl Golden {
    pub fn open(folder: &Path) -> Self {
        Self(SafetensorsStore::from_file(
            folder.join("golden.safetensors"),
        ))
    }

    fn data(&mut self, name: &str) -> TensorData {
        bridge::to_data(self.0.get_tensor(name).unwrap().unwrap()).unwrap()
    }

    pub fn floats(&mut self, name: &str) -> Vec<f32> {
        self.data(name).try_into_vec_as().unwrap()
    }

    pub fn ints<const D: usize>(&mut self, name: &str) -> Tensor<D, Int> {
        Tensor::from_data(self.data(name), &Device::flex())
    }

    /// All tensors whose names start with this, by the rest of their names.
    pub fn all(&mut self, start: &str) -> BTreeMap<String, Vec<f32>> {
        let all = self.0.get_all_tensors().unwrap().iter();
        let wanted = all.filter_map(|(name, tensor)| {
            let name = name.strip_prefix(start)?.to_owned();
            let data = bridge::to_data(tensor).unwrap();
            Some((name, data.try_into_vec_as().unwrap()))
        });
        wanted.collect()
    }
}

/// What a pipeline computes for the tokens of a golden file, next to what is there. `names` gives the name
/// there of a tensor with a gradient.
pub fn check(
    pipeline: &Pipeline<DecoderLayer>,
    golden: &mut Golden,
    names: impl Fn(&str) -> Option<String>,
    what: &str,
) {
    let (tokens, targets) = (golden.ints::<2>("tokens"), golden.ints::<2>("targets"));
    let lengths: Vec<i64> = golden.ints::<1>("lengths").into_data().iter().collect();
    let logits = pipeline.infer(tokens.clone()).unwrap().logits();
    let [_, length, vocabulary] = logits.dims();
    let mut logits = floats(logits);
    for (sample, logits) in logits.chunks_exact_mut(length * vocabulary).enumerate() {
        logits[lengths[sample] as usize * vocabulary..].fill(0.0); // of padding
    }
    close(
        &logits,
        &golden.floats("logits"),
        &format!("{what}: logits"),
    );
    let step = pipeline
        .train_step((tokens, targets), &objective())
        .unwrap();
    close(
        &[step.loss as f32],
        &golden.floats("loss"),
        &format!("{what}: loss"),
    );
    let expected = golden.all("grad/");
    let found = by_name(pipeline.layers(), &step.gradients, names);
    assert!(
        found.keys().eq(expected.keys()),
        "{what}: {:?}",
        found.keys()
    );
    for (name, expected) in &expected {
        close(&found[name], expected, &format!("{what}: {name}"));
    }
}

/// Compares by the largest value: ε of the norms and all that scales must be right to see none.
pub fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let pairs = found.iter().zip(expected);
    let apart = pairs.fold(0.0_f32, |most, (a, b)| {
        if a.is_nan() {
            f32::NAN
        } else {
            most.max((a - b).abs())
        }
    });
    // The gradient of a key's bias is zero up to rounding: it does not change the softmax.
    assert!(
        apart <= 1e-5 * largest.max(1e-2),
        "{what}: {apart} of {largest}"
    );
}

pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().unwrap()
}

/// The gradients that there are, by the names of their tensors in files.
pub fn by_name(
    layers: &[DecoderLayer],
    gradients: &GradientsParams,
    names: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, Vec<f32>> {
    struct Named<'a> {
        path: Vec<String>,
        gradients: &'a GradientsParams,
        found: Vec<(String, Vec<f32>)>,
    }

    impl ModuleVisitor for Named<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            if !container.starts_with("Enum:") {
                self.path.push(name.to_owned());
            }
        }

        fn exit_module(&mut self, _: &str, container: &str) {
            if !container.starts_with("Enum:") {
                self.path.pop();
            }
        }

        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.get::<D>(parameter.id) {
                let path = self.path.join(".");
                self.found
                    .push((format!("layers.{path}"), floats(gradient)));
            }
        }
    }

    let (path, found) = (Vec::new(), Vec::new());
    let mut named = Named {
        path,
        gradients,
        found,
    };
    layers.to_vec().visit(&mut named);
    let found = named.found.into_iter();
    found
        .filter_map(|(name, values)| Some((names(&name)?, values)))
        .collect()
}
