//! Folders that are written: the same to the byte, but for what was trained.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use burn::tensor::{FloatDType, TensorData};
use stovepipe_decoder::LoraConfig;
use stovepipe_pipeline::TokenLogits;
use stovepipe_train::{
    TrainError,
    weights::{Change, rewrite_folder, save_some},
};

use crate::common::{self, Golden, MODELS, adapted, folder, pipeline};

fn names(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn safetensors(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let is_golden = |path: &PathBuf| path.ends_with("golden.safetensors");
    let files = names(folder)
        .into_iter()
        .filter(move |path| !is_golden(path));
    files.filter(|path| path.extension().is_some_and(|kind| kind == "safetensors"))
}

#[test]
fn an_untrained_folder_is_the_same_to_the_byte() {
    for model in MODELS {
        let (config, new) = (common::config(model), tempfile::tempdir().unwrap());
        // By way of a pipeline in f32, or unchanged.
        let pipeline = pipeline(model, 2, FloatDType::F32);
        let values = tensors(&pipeline);
        for (name, changes) in [("changed", true), ("copied", false)] {
            let to = new.path().join(name);
            let change = |name: &str| {
                let own = values
                    .iter()
                    .find(|(own, _)| config.hub_name(own).as_deref() == Some(name));
                let data = own.map(|(_, data)| Change::To(data.clone()));
                assert!(data.is_some(), "{name}");
                Ok::<_, TrainError>(data.filter(|_| changes))
            };
            rewrite_folder(&folder(model), &to, change).unwrap();
            for path in safetensors(&folder(model)) {
                let copy = to.join(path.file_name().unwrap());
                assert!(
                    fs::read(&path).unwrap() == fs::read(copy).unwrap(),
                    "{}",
                    path.display()
                );
            }
            let config = fs::read(folder(model).join("config.json")).unwrap();
            assert_eq!(fs::read(to.join("config.json")).unwrap(), config);
        }
    }
}

/// All tensors of a pipeline.
fn tensors(
    pipeline: &stovepipe_pipeline::Pipeline<stovepipe_decoder::DecoderLayer>,
) -> Vec<(String, TensorData)> {
    use burn::{
        module::Module,
        store::{ModuleSnapshot, bridge},
    };
    let all = pipeline.valid().collect(None, None, true).into_iter();
    all.map(|tensor| (tensor.name.clone(), bridge::into_data(tensor).unwrap()))
        .collect()
}

/// An adapter that is loaded and saved has the same numbers, and `peft`'s own configuration.
#[test]
fn adapters_are_written_as_peft_writes_them() {
    for model in MODELS {
        let (config, new) = (common::config(model), tempfile::tempdir().unwrap());
        let (pipeline, own) = (
            adapted(model, 3, FloatDType::F32),
            folder(model).join("adapter"),
        );
        let path = new.path().join("adapter_model.safetensors");
        save_some(&pipeline, &path, |name| config.peft_name(name)).unwrap();
        let lora = LoraConfig::open(&own).unwrap();
        lora.save(new.path(), Some(model)).unwrap();
        assert_eq!(LoraConfig::open(new.path()).unwrap(), lora);
        let read = |path: PathBuf| {
            let bytes = fs::read(path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let tensors = file.tensors().into_iter();
            let tensors = tensors.map(|(name, view)| {
                (
                    name,
                    view.dtype(),
                    view.shape().to_vec(),
                    view.data().to_vec(),
                )
            });
            tensors.collect::<std::collections::BTreeSet<_>>()
        };
        assert!(
            read(path) == read(own.join("adapter_model.safetensors")),
            "{model}"
        );
    }
}

/// The folder with the adapter's part added to its weights computes what the adapter does.
#[test]
fn merged_folders_compute_what_peft_computes() {
    for model in ["llama", "qwen2"] {
        let (config, new) = (common::config(model), tempfile::tempdir().unwrap());
        let merged = new.path().join("merged");
        merge(model, &merged);
        let layers = config
            .init_to_load(FloatDType::F32, &burn::tensor::Device::flex())
            .unwrap();
        let mut pipeline = common::builder(layers, 2).build().unwrap();
        common::load(&config, &merged, &mut pipeline);
        let mut golden = Golden::open(&folder(model).join("adapter"));
        let logits = pipeline
            .infer(golden.ints::<2>("tokens").narrow(0, 0, 1))
            .unwrap()
            .logits();
        let size = logits.shape().num_elements();
        let what = format!("{model}, merged");
        common::close(
            &common::floats(logits),
            &golden.floats("logits")[..size],
            &what,
        );
    }
}

/// Adds a model's adapter to its weights.
fn merge(model: &str, to: &Path) {
    let pipeline = adapted(model, 1, FloatDType::F32);
    rewrite_folder(&folder(model), to, |name| {
        let Some((block, linear)) = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.strip_suffix(".weight")?.split_once('.'))
        else {
            return Ok(None);
        };
        let layer = &pipeline.layers()[block.parse::<usize>().unwrap() + 1];
        Ok(layer
            .lora_delta(linear)
            .map(|delta| Change::Plus(delta.into_data())))
    })
    .unwrap();
}

/// Needs a Python with `transformers` and `peft`, which `STOVEPIPE_PEFT_PYTHON` names.
#[test]
fn transformers_and_peft_read_what_is_written() {
    let Ok(python) = std::env::var("STOVEPIPE_PEFT_PYTHON") else {
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: STOVEPIPE_PEFT_PYTHON is not set"
        );
        return;
    };
    for model in MODELS {
        let (config, new) = (common::config(model), tempfile::tempdir().unwrap());
        let check = |base: &Path, adapter: &str| {
            let script = folder("make.py");
            let mut command = Command::new(&python);
            command
                .arg("-B")
                .arg(script)
                .arg("check")
                .arg(base)
                .arg(adapter);
            let output = command.arg(folder(model).join("adapter")).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{model}: {text}");
        };
        let adapter = new.path().join("adapter");
        fs::create_dir(&adapter).unwrap();
        let pipeline = adapted(model, 2, FloatDType::F32);
        let path = adapter.join("adapter_model.safetensors");
        save_some(&pipeline, &path, |name| config.peft_name(name)).unwrap();
        let lora = LoraConfig::open(folder(model).join("adapter")).unwrap();
        lora.save(&adapter, Some(model)).unwrap();
        check(&folder(model), adapter.to_str().unwrap());
        // A merged weight of 16 bits has another last bit.
        if ["llama", "qwen2"].contains(&model) {
            merge(model, &new.path().join("merged"));
            check(&new.path().join("merged"), "none");
        }
    }
}
