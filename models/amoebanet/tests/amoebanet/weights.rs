//! Weights that PyTorch wrote, in pipelines.

use crate::common::{AMOEBANET_D, Kink, difference, floats};
use burn::tensor::Device;
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig};
use stovepipe_pipeline::Pipeline;
use stovepipe_train::{
    TrainError, Weights, save_model,
    weights::{OtherTensors, save_for_pytorch},
};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/amoebanet_d_l3_d16.pt"
);
const TOLERANCE: f64 = 1e-4;

fn config() -> AmoebaNetDConfig {
    AmoebaNetDConfig::new(3, 16, 10)
}

fn pipeline(config: &AmoebaNetDConfig, stages: usize) -> Pipeline<AmoebaLayer> {
    let builder = Pipeline::builder(config.init(&Device::flex()).unwrap());
    builder
        .devices(vec![Device::flex(); stages])
        .build()
        .unwrap()
}

fn load(config: &AmoebaNetDConfig, stages: usize) -> Result<Pipeline<AmoebaLayer>, TrainError> {
    let mut pipeline = pipeline(config, stages);
    let weights = Weights::open(FILE)?.renamed(&config.torch_keys())?;
    weights.load_into(&mut pipeline)?;
    Ok(pipeline)
}

#[test]
fn pytorchs_weights_give_pytorchs_logits() {
    let golden = AMOEBANET_D.load(Kink::Leave);
    for stages in 1..=3 {
        let pipeline = load(&config(), stages).unwrap();
        let logits = pipeline.infer(golden.input.clone().inner()).unwrap();
        let apart = difference(&floats(logits.into_data()), &golden.eval_logits);
        println!("{stages} stages: {apart:.1e}");
        assert!(apart < TOLERANCE, "{stages} stages: {apart}");
    }
}

#[test]
fn our_own_names_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    save_model(&load(&config(), 2).unwrap(), file.clone()).unwrap();
    let saved = Weights::open(&file).unwrap();
    let names: Vec<_> = saved.names().map(str::to_owned).collect();
    let renamed = saved.renamed(&config().torch_keys()).unwrap();
    assert!(renamed.names().eq(names));
    renamed.load_into(&mut pipeline(&config(), 3)).unwrap();
}

/// PyTorch's `load_state_dict` takes them with `strict=True`.
#[test]
fn files_for_pytorch_have_torchgpipes_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("for-pytorch.safetensors");
    let own = load(&config(), 2).unwrap();
    save_for_pytorch(&own, &file, |tensors| config().to_torch(tensors)).unwrap();
    let (ours, theirs) = (Weights::open(&file).unwrap(), Weights::open(FILE).unwrap());
    assert!(ours.names().eq(theirs.names()));
    assert!(
        ours.names()
            .all(|name| ours.shape(name) == theirs.shape(name))
    );
    let mut loaded = pipeline(&config(), 1);
    ours.renamed(&config().torch_keys())
        .unwrap()
        .load_into(&mut loaded)
        .unwrap();
    let input = AMOEBANET_D.load(Kink::Leave).input.inner();
    let logits = |of: &Pipeline<AmoebaLayer>| floats(of.infer(input.clone()).unwrap().into_data());
    assert_eq!(logits(&loaded), logits(&own));

    // Separable convolutions have a module of their own.
    let separable = AmoebaNetBConfig::new(3, 8, 10);
    let layers = separable.init(&Device::flex()).unwrap();
    let own = Pipeline::builder(layers.clone())
        .devices([Device::flex()])
        .build()
        .unwrap();
    save_for_pytorch(&own, &file, |tensors| separable.to_torch(tensors)).unwrap();
    let saved = Weights::open(&file).unwrap();
    let mut back = Pipeline::builder(layers)
        .devices([Device::flex()])
        .build()
        .unwrap();
    let renamed = saved.renamed(&separable.torch_keys()).unwrap();
    renamed.load_into(&mut back).unwrap();
}

fn other_tensors(config: &AmoebaNetDConfig) -> OtherTensors {
    match load(config, 1) {
        Err(TrainError::OtherModel { tensors, .. }) => *tensors,
        _ => panic!("the weights fit"),
    }
}

#[test]
fn another_models_weights_are_refused_by_name() {
    let wider = AmoebaNetDConfig::new(3, 20, 10);
    let tensors = other_tensors(&wider);
    let others = tensors.missing.len() + tensors.extra.len();
    assert_eq!(others, 0, "{tensors}");
    let first = "layers.0.conv.weight (from stem1.conv.weight) is [4, 3, 3, 3], not [5, 3, 3, 3]";
    let mut misshapen = tensors.misshapen.iter();
    assert!(misshapen.any(|line| line == first), "{tensors}");

    let deeper = AmoebaNetDConfig::new(6, 16, 10);
    let tensors = other_tensors(&deeper);
    let is_of_layer_4 = |name: &String| name.starts_with("layers.4.");
    assert!(tensors.missing.iter().any(is_of_layer_4), "{tensors}");
}
