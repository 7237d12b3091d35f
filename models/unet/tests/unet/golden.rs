//! The same results as PyTorch, on one device and in a pipeline.

use std::collections::BTreeMap;

use crate::common::{difference, floats, gradients_of, run, unchanged};
use burn::{
    module::Module,
    optim::GradientsParams,
    store::{
        KeyRemapper, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter, SafetensorsStore, bridge,
    },
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{KeyedRng, MeanOf, Pipeline, Recompute};
use stovepipe_unet::{UNetConfig, UNetLayer};

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/unet_b2_c5_d3.safetensors"
);
const TOLERANCE: f64 = 1e-4;

struct Golden {
    layers: Vec<UNetLayer>,
    file: SafetensorsStore,
    keys: KeyRemapper,
}

impl Golden {
    fn load() -> Self {
        let config = UNetConfig::new(2, 5).with_depth(3).with_dropout(0.0);
        let mut layers = config.init(&Device::flex()).unwrap();
        let mut weights = SafetensorsStore::from_file(PATH)
            .with_from_adapter(PyTorchToBurnAdapter)
            .skip_enum_variants(true)
            .remap(config.torch_keys())
            .with_key_remapping("^weights/", "");
        let loaded = layers.load_from(&mut weights).unwrap();
        assert_eq!(loaded.applied.len(), 15, "{loaded}");
        assert_eq!((loaded.missing.len(), loaded.errors.len()), (0, 0));
        Self {
            layers,
            file: SafetensorsStore::from_file(PATH),
            keys: config.torch_keys(),
        }
    }

    fn tensor<const D: usize>(&mut self, name: &str) -> Tensor<D> {
        let tensor = self.file.get_tensor(name).unwrap().unwrap();
        Tensor::from_data(bridge::to_data(tensor).unwrap(), &Device::flex())
    }

    fn assert_close<const D: usize>(&mut self, ours: Tensor<D>, name: &str) {
        let apart = difference(&floats(ours), &floats(self.tensor::<D>(name)));
        println!("{name}: {apart:.1e}");
        assert!(apart < TOLERANCE, "{name}: {apart}");
    }

    fn gradients(&mut self) -> BTreeMap<usize, Vec<f32>> {
        const PREFIX: &str = "grad/weights/";
        let all = self.file.get_all_tensors().unwrap().values().cloned();
        let gradients = all.filter_map(|mut tensor| {
            tensor.name = tensor.name.strip_prefix(PREFIX)?.to_owned();
            Some(tensor)
        });
        let renamed = self.keys.remap(gradients.collect()).0.into_iter();
        let by_place = renamed.map(|tensor| {
            let place = tensor.name.strip_suffix(".conv.weight").unwrap();
            let data = bridge::to_data(&tensor).unwrap();
            (place.parse().unwrap(), data.try_into_vec_as().unwrap())
        });
        by_place.collect()
    }

    fn check_gradients(&mut self, layers: &[UNetLayer], gradients: &GradientsParams) {
        let mut expected = self.gradients();
        for (layer, found) in gradients_of(layers, gradients) {
            let apart = difference(&found, &expected.remove(&layer).unwrap());
            assert!(apart < TOLERANCE, "layer {layer}: {apart}");
        }
        assert!(expected.is_empty());
    }
}

#[test]
fn one_pass_agrees_with_pytorch() {
    let mut golden = Golden::load();
    let layers = golden.layers.clone().train();
    let images = golden.tensor("input").autodiff().require_grad();
    let target = golden.tensor("target").autodiff();
    let output = run(&layers, images.clone(), |_| KeyedRng::none(), unchanged).unwrap();
    let loss = (output.clone() - target).powi_scalar(2).mean();
    let mut gradients = loss.backward();

    golden.assert_close(output, "output");
    golden.assert_close(loss, "loss");
    let of_images = images.grad_remove(&mut gradients).unwrap();
    golden.assert_close(of_images, "grad/input");
    let gradients = GradientsParams::from_grads(gradients, &layers);
    golden.check_gradients(&layers, &gradients);
}

#[test]
fn a_training_step_through_stages_agrees_with_pytorch() {
    for recompute in [Recompute::Always, Recompute::Never] {
        let mut golden = Golden::load();
        // One image a micro-batch: each map is normalized by itself.
        let builder = Pipeline::builder(golden.layers.clone()).devices(vec![Device::flex(); 4]);
        let builder = builder.micro_batches(2).recompute(recompute);
        let pipeline = builder.build().unwrap();
        let squared = MeanOf(|y: Tensor<4>, t: Tensor<4>| (y - t).powi_scalar(2).mean());
        let (images, target) = (golden.tensor("input"), golden.tensor("target"));
        let step = pipeline.train_step((images, target), &squared).unwrap();
        let loss = Tensor::<1>::from_floats([step.loss as f32], &Device::flex());
        golden.assert_close(loss, "loss");
        golden.check_gradients(pipeline.layers(), &step.gradients);
    }
}
