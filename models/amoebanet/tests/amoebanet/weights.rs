//! Weights that PyTorch wrote, in pipelines.

use crate::common::{AMOEBANET_D, Kink, difference, floats};
use burn::tensor::Device;
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig};
use stovepipe_pipeline::Pipeline;
use stovepipe_train::{TrainError, Weights, save_model};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/amoebanet_d_l3_d16.pt"
);
const TOLERANCE: f64 = 1e-4;

fn config() -> AmoebaNetDConfig {
    AmoebaNetDConfig::new(3, 16, 10)
}

fn pipeline(config: &AmoebaNetDConfig, stages: usize) -> Pipeline<AmoebaLayer> {
    Pipeline::builder(config.init(&Device::flex()).unwrap())
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

#[test]
fn another_models_weights_are_refused_by_name() {
    let wider = AmoebaNetDConfig::new(3, 20, 10);
    let Err(TrainError::OtherModel { tensors, .. }) = load(&wider, 1) else {
        panic!();
    };
    assert_eq!(
        [tensors.missing.len(), tensors.extra.len()],
        [0, 0],
        "{tensors}"
    );
    let first = "layers.0.conv.weight (from stem1.conv.weight) is [4, 3, 3, 3], not [5, 3, 3, 3]";
    assert!(
        tensors.misshapen.iter().any(|line| line == first),
        "{tensors}"
    );

    let deeper = AmoebaNetDConfig::new(6, 16, 10);
    let Err(TrainError::OtherModel { tensors, .. }) = load(&deeper, 1) else {
        panic!();
    };
    let mut missing = tensors.missing.iter();
    assert!(
        missing.any(|name| name.starts_with("layers.4.")),
        "{tensors}"
    );
}
