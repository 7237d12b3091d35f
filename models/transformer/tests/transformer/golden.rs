//! The same results as PyTorch's Transformer layers and timm's vision transformer, on one device and in
//! a pipeline.

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    store::{ModuleSnapshot, ModuleStore, SafetensorsStore, bridge},
    tensor::{Device, Int, Tensor, TensorData},
};
use stovepipe_pipeline::{
    Batch, CrossEntropy, Flow, FlowMapper, KeyedRng, Layer, Objective, Pipeline,
    Recompute::{Always, ExceptLast, Never},
    run_plain,
};
use stovepipe_transformer::{LmConfig, Pool, Positions, VitConfig};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const TOLERANCE: f64 = 1e-5;

struct Golden(SafetensorsStore);

impl Golden {
    fn open(name: &str) -> Self {
        let path = format!("{GOLDEN}/{name}.safetensors");
        Self(SafetensorsStore::from_file(path))
    }

    fn data(&mut self, name: &str) -> TensorData {
        bridge::to_data(self.0.get_tensor(name).unwrap().unwrap()).unwrap()
    }

    fn floats(&mut self, name: &str) -> Vec<f32> {
        self.data(name).try_into_vec_as().unwrap()
    }

    fn ints<const D: usize>(&mut self, name: &str) -> Tensor<D, Int> {
        Tensor::from_data(self.data(name), &Device::flex())
    }

    /// All gradients, by the names of their parameters.
    fn gradients(&mut self) -> BTreeMap<String, Vec<f32>> {
        let all = self.0.get_all_tensors().unwrap().iter();
        let gradients = all.filter_map(|(name, tensor)| {
            let name = name.strip_prefix("grad/")?.to_owned();
            let data = bridge::to_data(tensor).unwrap();
            Some((name, data.try_into_vec_as().unwrap()))
        });
        gradients.collect()
    }
}

struct Named<'a> {
    path: Vec<String>,
    gradients: &'a GradientsParams,
    found: BTreeMap<String, Vec<f32>>,
}

impl ModuleVisitor for Named<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let variants = ["Embed", "Block", "Head"];
        let path = self.path.iter().map(String::as_str);
        let path: Vec<_> = path.filter(|name| !variants.contains(name)).collect();
        if let Some(tensor) = self.gradients.get::<D>(parameter.id) {
            self.found.insert(path.join("."), floats(tensor));
        }
    }
}

fn by_name<L: Layer>(layers: &[L], gradients: &GradientsParams) -> BTreeMap<String, Vec<f32>> {
    let mut named = Named {
        path: Vec::new(),
        gradients,
        found: BTreeMap::new(),
    };
    layers.to_vec().visit(&mut named);
    named.found
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().unwrap()
}

/// Compares the norm of the difference with the norm; fails for NaN.
fn assert_close(ours: &[f32], expected: &[f32], what: &str) {
    assert_eq!(ours.len(), expected.len(), "{what}");
    let square = |x: f32| f64::from(x).powi(2);
    let apart: f64 = ours.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().map(|&x| square(x)).sum();
    // The gradient of the keys' bias is zero up to rounding: it does not change the softmax.
    let apart = apart.sqrt() / norm.sqrt().max(1e-3);
    println!("{what}: {apart:.1e}");
    assert!(apart < TOLERANCE, "{what}: {apart}");
}

/// Compares the gradients of all parameters. `tied` is the second name of one of them.
fn check_gradients(golden: &mut Golden, mut found: BTreeMap<String, Vec<f32>>, tied: Option<&str>) {
    if let Some(tied) = tied {
        found.remove(tied);
    }
    let expected = golden.gradients();
    assert!(found.keys().eq(expected.keys()), "{found:?}");
    for (name, expected) in &expected {
        assert_close(&found[name], expected, name);
    }
}

/// Compares logits, loss and gradients, without a pipeline and in one to three stages.
fn check<L, T, const D: usize>(
    name: &str,
    layers: impl Fn() -> Vec<L>,
    read: fn(&mut Golden) -> (L::Input, T),
    tied: Option<&str>,
) where
    L: Layer<Output = Tensor<D>, Side = ()>,
    T: Flow,
    CrossEntropy: Objective<Tensor<D>, T>,
{
    let mut golden = Golden::open(name);
    for (stages, recompute) in [(1, Never), (2, Always), (3, ExceptLast)] {
        let builder = Pipeline::builder(layers()).devices(vec![Device::flex(); stages]);
        let builder = builder.micro_batches(2).recompute(recompute);
        let mut pipeline = builder.build().unwrap();
        let mut weights = SafetensorsStore::from_file(format!("{GOLDEN}/{name}.safetensors"))
            .skip_enum_variants(true)
            .allow_partial(true)
            .with_key_remapping("^weights/", "layers.");
        let loaded = pipeline.load_from(&mut weights).unwrap();
        let missing = usize::from(tied.is_some());
        assert_eq!(loaded.missing.len(), missing, "{loaded}");

        let (input, target) = read(&mut golden);
        let batch = Batch::new(input, target).keep_outputs();
        let step = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
        println!("{name}, {stages} stages:");
        let logits = floats(step.outputs.unwrap());
        assert_close(&logits, &golden.floats("logits"), "logits");
        assert_close(&[step.loss as f32], &golden.floats("loss"), "loss");
        let gradients = by_name(pipeline.layers(), &step.gradients);
        check_gradients(&mut golden, gradients, tied);

        let (input, target) = read(&mut golden);
        let evaluated = pipeline.infer(input).unwrap();
        assert_close(&floats(evaluated), &golden.floats("logits"), "evaluated");
        if tied.is_some() {
            continue;
        }

        // Without a pipeline, in one graph.
        let layers = pipeline.into_layers().train();
        let input = read(&mut golden).0.map(&mut Attach);
        let weight = CrossEntropy::new().weight(&target);
        let plain = run_plain(&layers, input, &(), |_| KeyedRng::none()).unwrap();
        let loss = CrossEntropy::new().loss(plain.output, target.map(&mut Attach)) / weight;
        let gradients = GradientsParams::from_grads(loss.backward(), &layers);
        check_gradients(&mut golden, by_name(&layers, &gradients), None);
    }
}

struct Attach;

impl FlowMapper for Attach {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.autodiff()
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.autodiff()
    }
}

fn check_lm(name: &str, config: LmConfig, tied: Option<&str>) {
    let config = config.with_dropout(0.0);
    check(
        name,
        || config.init(&Device::flex()).unwrap(),
        |golden| (golden.ints("input"), golden.ints::<2>("target")),
        tied,
    );
}

fn check_vit(name: &str, config: VitConfig) {
    check(
        name,
        || config.init(&Device::flex()).unwrap(),
        |golden| {
            let images = Tensor::from_data(golden.data("input"), &Device::flex());
            (images, golden.ints::<1>("target"))
        },
        None,
    );
}

#[test]
fn language_models_equal_pytorchs() {
    let lm = |layers| LmConfig::new(23, 9, layers, 16, 4).with_d_ff(Some(40));
    check_lm("lm_causal_tied_learned", lm(3), Some("4.tokens"));
    let both_ways = lm(2).with_tied(false).with_causal(false);
    check_lm("lm_both_ways", both_ways, None);
    let sinusoidal = lm(2).with_tied(false).with_positions(Positions::Sinusoidal);
    check_lm("lm_causal_sinusoidal", sinusoidal, None);
}

#[test]
fn vision_transformers_equal_timms() {
    let config = VitConfig::new(12, 4, 2, 24, 3, 5);
    check_vit("vit_class_token", config.clone());
    check_vit("vit_mean", config.with_pool(Pool::Mean));
}
