//! Weights that timm and PyTorch wrote, in pipelines.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use burn::{
    module::Module,
    store::{ModuleSnapshot, ModuleStore, SafetensorsStore, bridge},
    tensor::{Device, Tensor, TensorData},
};
use safetensors::{SafeTensors, tensor::TensorView};
use stovepipe_pipeline::{KeyedRng, Pipeline, run_plain};
use stovepipe_train::{
    TrainError, Weights, load_model, save_model,
    weights::{OtherTensors, save_for_pytorch},
};
use stovepipe_transformer::{Pool, VitConfig, VitLayer};

const TOLERANCE: f32 = 1e-5;

fn path(file: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    Path::new(folder).join(file)
}

fn config(pool: Pool) -> VitConfig {
    VitConfig::new(12, 4, 2, 24, 3, 5).with_pool(pool)
}

fn pipeline(config: &VitConfig, stages: usize) -> Pipeline<VitLayer> {
    let builder = Pipeline::builder(config.init(&Device::flex()).unwrap());
    builder
        .devices(vec![Device::flex(); stages])
        .build()
        .unwrap()
}

fn weights(file: &str, config: &VitConfig) -> Weights {
    let weights = Weights::open(path(file)).unwrap();
    weights.renamed(&config.timm_keys()).unwrap()
}

fn load(file: &str, config: &VitConfig) -> Result<OtherTensors, TrainError> {
    weights(file, config).load_into(&mut pipeline(config, 1))
}

fn other_tensors(result: Result<OtherTensors, TrainError>) -> OtherTensors {
    match result {
        Err(TrainError::OtherModel { tensors, .. }) => *tensors,
        other => panic!("{other:?}"),
    }
}

fn golden<const D: usize>(file: &str, name: &str) -> Tensor<D> {
    Tensor::from_data(data(&path(file), name), &Device::flex())
}

fn data(path: &Path, name: &str) -> TensorData {
    let mut file = SafetensorsStore::from_file(path);
    bridge::to_data(file.get_tensor(name).unwrap().unwrap()).unwrap()
}

fn assert_same(found: Tensor<2>, file: &str) {
    let apart = (found - golden(file, "logits")).abs().max();
    let apart: f32 = apart.into_scalar();
    println!("{file}: {apart:.1e}");
    assert!(apart < TOLERANCE, "{file}: {apart}");
}

#[test]
fn timms_weights_give_timms_logits() {
    let class_token = ("vit_class_token.safetensors", Pool::ClassToken);
    for (file, (expected, pool)) in [
        ("vit_class_token.pt", class_token),
        ("timm_class_token.safetensors", class_token),
        // A checkpoint of a parallel training, in the format of PyTorch before 1.6.
        ("vit_mean.pt", ("vit_mean.safetensors", Pool::Mean)),
    ] {
        let config = config(pool);
        for stages in 1..=3 {
            let mut pipeline = pipeline(&config, stages);
            weights(file, &config).load_into(&mut pipeline).unwrap();
            let logits = pipeline.infer(golden(expected, "input")).unwrap();
            assert_same(logits, expected);
        }
    }
}

#[test]
fn saved_models_load_with_and_without_a_pipeline() {
    #[derive(Module, Debug)]
    struct Plain {
        layers: Vec<VitLayer>,
    }

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let config = config(Pool::ClassToken);
    let mut three = pipeline(&config, 3);
    let timm = weights("vit_class_token.pt", &config);
    timm.load_into(&mut three).unwrap();
    save_model(&three, file.clone()).unwrap();

    let expected = "vit_class_token.safetensors";
    let images = || golden::<4>(expected, "input");
    // Our own names stay as they are.
    let saved = Weights::open(&file).unwrap();
    let renamed = saved.renamed(&config.timm_keys()).unwrap();
    let mut two = pipeline(&config, 2);
    renamed.load_into(&mut two).unwrap();
    assert_same(two.infer(images()).unwrap(), expected);
    let mut two = pipeline(&config, 2);
    load_model(&mut two, &file).unwrap();
    assert_same(two.infer(images()).unwrap(), expected);

    let layers = config.init(&Device::flex()).unwrap();
    let mut plain = Plain { layers };
    let mut store = SafetensorsStore::from_file(&file).skip_enum_variants(true);
    let loaded = plain.load_from(&mut store).unwrap();
    let others = loaded.missing.len() + loaded.unused.len();
    assert_eq!(others, 0, "{loaded}");
    let logits = run_plain(&plain.layers, images(), &(), |_| KeyedRng::none()).unwrap();
    assert_same(logits.output, expected);
}

/// Names, shapes and bytes: PyTorch's `load_state_dict` takes them with `strict=True`.
#[test]
fn files_for_pytorch_are_timms() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("for-pytorch.safetensors");
    let config = config(Pool::ClassToken);
    let mut saved = pipeline(&config, 2);
    let timm = "timm_class_token.safetensors";
    weights(timm, &config).load_into(&mut saved).unwrap();
    save_for_pytorch(&saved, &file, |tensors| config.to_timm(tensors)).unwrap();
    let read = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let of = |(name, tensor): (String, TensorView)| {
            (name, (tensor.shape().to_vec(), tensor.data().to_vec()))
        };
        tensors
            .tensors()
            .into_iter()
            .map(of)
            .collect::<BTreeMap<_, _>>()
    };
    let (ours, theirs) = (read(&file), read(&path(timm)));
    assert!(ours.keys().eq(theirs.keys()), "{:?}", ours.keys());
    assert!(ours == theirs);
    // With mean pooling, the norm has another name.
    let config = VitConfig {
        pool: Pool::Mean,
        ..config
    };
    save_for_pytorch(&pipeline(&config, 1), &file, |tensors| {
        config.to_timm(tensors)
    })
    .unwrap();
    let names: Vec<_> = read(&file).into_keys().collect();
    assert!(names.contains(&"fc_norm.weight".to_owned()), "{names:?}");
    assert!(load_back(&file, &config).is_ok());
}

fn load_back(file: &Path, config: &VitConfig) -> Result<OtherTensors, TrainError> {
    let weights = Weights::open(file)?.renamed(&config.timm_keys())?;
    weights.load_into(&mut pipeline(config, 2))
}

/// Positions of another size are resized; what may be missing keeps its values.
#[test]
fn weights_of_another_size_are_resized() {
    let larger = VitConfig {
        image: 20,
        ..config(Pool::ClassToken)
    };
    let open = || weights("timm_class_token.safetensors", &larger);
    let tensors = other_tensors(open().load_into(&mut pipeline(&larger, 1)));
    assert_eq!(tensors.misshapen.len(), 1, "{tensors}");
    let mut resized = open();
    let shape = [larger.tokens(), larger.d_model];
    let is_resized = resized.resize("layers.0.positions", &shape, |own| {
        larger.resized_positions(own)
    });
    assert!(is_resized.unwrap());
    resized.load_into(&mut pipeline(&larger, 1)).unwrap();

    let deeper = VitConfig {
        layers: 3,
        ..config(Pool::ClassToken)
    };
    let missing = |name: &str| name.starts_with("layers.3.");
    let shallow = weights("timm_class_token.safetensors", &config(Pool::ClassToken));
    let shallow = shallow
        .allowing_missing(missing)
        .allowing_extra(|name| name.starts_with("head"));
    let tensors = other_tensors(shallow.load_into(&mut pipeline(&deeper, 1)));
    assert_eq!(tensors.missing.len(), 4, "{tensors}");
    assert_eq!(tensors.extra, ["norm.bias", "norm.weight"]);
}

#[test]
fn another_models_weights_are_refused_by_name() {
    let with_layers = |layers| VitConfig::new(12, 4, layers, 24, 3, 5);
    let deeper = with_layers(3);
    let tensors = other_tensors(load("vit_class_token.pt", &deeper));
    assert_eq!(tensors.missing.len(), 12, "{tensors}");
    let qkv = "layers.3.attention.qkv.weight";
    assert!(tensors.missing.iter().any(|name| name == qkv));
    let others = tensors.extra.len() + tensors.misshapen.len();
    assert_eq!(others, 0, "{tensors}");

    let shallower = with_layers(1);
    let tensors = other_tensors(load("timm_class_token.safetensors", &shallower));
    assert_eq!(tensors.extra.len(), 12, "{tensors}");
    let qkv = "blocks.1.attn.qkv.weight";
    assert!(tensors.extra.iter().any(|name| name == qkv), "{tensors}");

    // With mean pooling there is no class token, no position for it, and another norm.
    let tensors = other_tensors(load("vit_class_token.pt", &config(Pool::Mean)));
    let norm = ["layers.3.norm.gamma", "layers.3.norm.beta"];
    assert_eq!(tensors.missing, norm);
    assert_eq!(tensors.extra, ["cls_token", "norm.bias", "norm.weight"]);
    let positions = "layers.0.positions (from pos_embed) is [10, 24], not [9, 24]";
    assert_eq!(tensors.misshapen, [positions]);
}

#[test]
fn a_classifier_for_other_classes_stays_as_it_is() {
    let others = VitConfig::new(12, 4, 2, 24, 3, 7);
    let weights = || weights("vit_class_token.pt", &others);
    let classifier = others.classifier();
    let bias = format!("{classifier}.bias");
    assert_eq!(weights().shape(&bias), Some(&[5][..]));
    let mut pipeline = pipeline(&others, 2);
    let tensors = other_tensors(weights().load_into(&mut pipeline));
    let weight = "layers.3.classes.weight (from head.weight) is [24, 5], not [24, 7]";
    let bias = "layers.3.classes.bias (from head.bias) is [5], not [7]";
    assert_eq!(tensors.misshapen, [weight, bias]);

    let weights = weights().without(move |name| name.starts_with(&classifier));
    weights.load_into(&mut pipeline).unwrap();
    let images = golden::<4>("vit_class_token.safetensors", "input");
    assert_eq!(pipeline.infer(images).unwrap().dims(), [4, 7]);
}
