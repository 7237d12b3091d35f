//! Images of any size go through; what does not fit is refused.

use crate::common;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Distribution, Tensor},
};
use stovepipe_amoebanet::{
    AmoebaFlow, AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, AmoebaNetError, Stem,
};
use stovepipe_pipeline::{Context, Layer, LayerError};

fn model(config: AmoebaNetDConfig, device: &Device) -> Vec<AmoebaLayer> {
    config.init(device).unwrap()
}

fn tiny() -> AmoebaNetDConfig {
    AmoebaNetDConfig::new(3, 8, 10)
}

/// The same of each member of the family: D and B.
fn members(stem: Stem, auxiliary: bool, device: &Device) -> [Vec<AmoebaLayer>; 2] {
    let b = AmoebaNetBConfig::new(3, 8, 10).with_stem(stem);
    [
        model(tiny().with_stem(stem).with_auxiliary(auxiliary), device),
        b.with_auxiliary(auxiliary).init(device).unwrap(),
    ]
}

fn images(samples: usize, size: usize, device: &Device) -> Tensor<4> {
    let shape = [samples, 3, size, size];
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

fn forward(layer: &AmoebaLayer, flow: AmoebaFlow) -> Result<AmoebaFlow, LayerError> {
    layer.forward(flow, &mut Context::new(&(), false))
}

fn states(first: [usize; 4], second: [usize; 4]) -> AmoebaFlow {
    let [first, second] = [first, second].map(|shape| Tensor::zeros(shape, &Device::flex()));
    AmoebaFlow::Pair(first, second)
}

/// The channels and the height of each layer's state.
fn sizes(layers: &[AmoebaLayer], size: usize) -> Vec<[usize; 2]> {
    let mut flow = AmoebaLayer::enter(images(1, size, &Device::flex()));
    let mut sizes = Vec::new();
    for layer in layers {
        flow = forward(layer, flow).unwrap();
        if let AmoebaFlow::Single(state) | AmoebaFlow::Pair(state, _) = &flow {
            let [_, channels, height, width] = state.dims();
            assert_eq!(height, width);
            sizes.push([channels, height]);
        }
    }
    assert_eq!(AmoebaLayer::leave(flow).unwrap().dims(), [1, 10]);
    sizes
}

#[test]
fn every_image_size_has_its_maps() {
    for (stem, size, maps) in [
        (Stem::ImageNet, 224, [112, 56, 28, 28, 14, 14, 7, 7]),
        (Stem::ImageNet, 331, [166, 83, 42, 42, 21, 21, 11, 11]),
        (Stem::ImageNet, 480, [240, 120, 60, 60, 30, 30, 15, 15]),
        (Stem::ImageNet, 1, [1; 8]),
        (Stem::Small, 32, [32, 32, 16, 16, 8, 8, 4, 4]),
        (Stem::Small, 33, [33, 33, 17, 17, 9, 9, 5, 5]),
    ] {
        // A normal cell puts out four states, a reduction cell three or two, whose widths double.
        let first = |reduction| if stem == Stem::Small { 4 } else { reduction };
        let d = [2, first(3) * 4, 24, 32, 48, 64, 96, 128];
        let b = [2, first(2) * 2, 8, 32, 32, 64, 64, 128];
        let models = members(stem, false, &Device::flex());
        for (layers, channels) in models.iter().zip([d, b]) {
            let expected = channels.into_iter().zip(maps).map(|(c, n)| [c, n]);
            let expected: Vec<_> = expected.collect();
            assert_eq!(sizes(layers, size), expected, "{stem:?} {size}");
        }
    }
}

#[test]
fn images_need_not_be_square() {
    let device = Device::flex();
    for layers in members(Stem::ImageNet, false, &device) {
        let images = Tensor::ones([2, 3, 37, 50], &device);
        let logits = common::run(&layers, images, &mut Context::new(&(), false)).unwrap();
        assert_eq!(logits.dims(), [2, 10]);
    }
}

#[test]
fn layers_have_names() {
    let (normal, reduction) = ("NormalCell", "ReductionCell");
    let body = [normal, reduction, normal, reduction, normal, "Head"];
    for (stem, start) in [
        (Stem::ImageNet, ["Stem", reduction, reduction]),
        (Stem::Small, ["Stem", normal, reduction]),
    ] {
        for layers in members(stem, false, &Device::flex()) {
            let names: Vec<String> = layers.iter().map(Layer::name).collect();
            assert_eq!(names[..3], start);
            assert_eq!(names[3..], body);
        }
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let layers = model(tiny(), &device);
    let single = |dims: [usize; 4]| AmoebaFlow::Single(Tensor::zeros(dims, &device));
    let logits = || AmoebaFlow::Logits(Tensor::zeros([2, 10], &device));
    let (stem, first, normal, head) = (&layers[0], &layers[1], &layers[3], &layers[8]);
    let gray = "images [n, 3, height, width], found [2, 1, 32, 32]";
    let empty = "images [n, 3, height, width], found [2, 3, 32, 0]";
    let narrow =
        "states of 2 and 2 channels and the same size, found [2, 3, 8, 8] and [2, 3, 8, 8]";
    let small = "states of 24 and 12 channels, the second of twice the size, \
                 found [2, 24, 8, 8] and [2, 12, 8, 8]";
    let one = "two states, found one state [2, 128, 1, 1]";
    let wrong = "a state of 128 channels, found [2, 96, 4, 4]";
    for (layer, flow, message) in [
        (stem, single([2, 1, 32, 32]), gray),
        (stem, single([2, 3, 32, 0]), empty),
        (stem, logits(), "images, found logits [2, 10]"),
        (first, logits(), "one or two states, found logits [2, 10]"),
        (first, single([2, 3, 8, 8]), narrow),
        (normal, states([2, 24, 8, 8], [2, 12, 8, 8]), small),
        (head, single([2, 128, 1, 1]), one),
        (head, states([2, 96, 4, 4], [2, 96, 4, 4]), wrong),
    ] {
        let error = forward(layer, flow).unwrap_err().to_string();
        assert_eq!(error, format!("expected {message}"));
    }
    let left = AmoebaLayer::leave(states([1, 2, 3, 4], [1, 1, 1, 1])).unwrap_err();
    let expected = "expected logits, found states [1, 2, 3, 4] and [1, 1, 1, 1]";
    assert_eq!(left.to_string(), expected);
}

#[test]
fn bad_configurations_are_refused() {
    let error = |layers, filters, classes| {
        let device = Device::flex();
        let d = AmoebaNetDConfig::new(layers, filters, classes).init(&device);
        let b = AmoebaNetBConfig::new(layers, filters, classes).init(&device);
        assert_eq!(b.unwrap_err(), d.as_ref().unwrap_err().clone());
        d.unwrap_err()
    };
    assert_eq!(error(0, 8, 10), AmoebaNetError::Layers(0));
    assert_eq!(error(4, 8, 10), AmoebaNetError::Layers(4));
    assert_eq!(error(3, 0, 10), AmoebaNetError::Filters(0));
    assert_eq!(error(3, 6, 10), AmoebaNetError::Filters(6));
    assert_eq!(error(3, 8, 0), AmoebaNetError::Classes);
    let expected = "the number of normal cells must be a multiple of 3 from 3 to 3000, not 4";
    assert_eq!(error(4, 8, 10).to_string(), expected);
    for drop_path in [1.0, -0.1, f64::NAN] {
        let device = Device::flex();
        let d = AmoebaNetDConfig::new(3, 8, 10).with_drop_path(drop_path);
        let b = AmoebaNetBConfig::new(3, 8, 10).with_drop_path(drop_path);
        let expected = "the probability of drop-path must be at least 0 and less than 1, not";
        for error in [d.init(&device), b.init(&device)] {
            let expected = format!("{expected} {drop_path:?}");
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
    }
}

#[test]
fn the_smallest_model_trains() {
    let device = Device::flex().autodiff();
    let d = AmoebaNetDConfig::new(3, 4, 1).with_stem(Stem::Small);
    let b = AmoebaNetBConfig::new(3, 4, 1).with_stem(Stem::Small);
    for layers in [model(d, &device), b.init(&device).unwrap()] {
        let mut context = Context::new(&(), true);
        let logits = common::run(&layers, images(2, 8, &device), &mut context).unwrap();
        assert_eq!(logits.dims(), [2, 1]);
        logits.sum().backward();
    }
}

/// Whether the parameters of the auxiliary head have been allocated.
fn auxiliary_head_was_used(layers: &[AmoebaLayer]) -> bool {
    #[derive(Default)]
    struct Used {
        path: Vec<String>,
        used: bool,
    }

    impl ModuleVisitor for Used {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let [.., layer, name] = &self.path[..] else {
                return;
            };
            self.used |= layer == "fc" && name == "weight" && param.is_initialized();
        }
    }

    let mut visitor = Used::default();
    let cells = (layers.iter()).filter(|layer| matches!(layer, AmoebaLayer::Cell(_)));
    cells.for_each(|cell| cell.visit(&mut visitor));
    visitor.used
}

#[test]
fn the_auxiliary_head_runs_in_training_only() {
    // Maps of 14, 2 and 4 pixels: larger and smaller than its window.
    let large = Stem::ImageNet;
    for (stem, size) in [(large, 224), (large, 32), (Stem::Small, 16)] {
        let device = Device::flex().autodiff();
        for layers in members(stem, true, &device) {
            let auxiliary = |training| {
                let mut context = Context::new(&(), training);
                common::run(&layers, images(2, size, &device), &mut context).unwrap();
                context.into_auxiliary()
            };
            assert!(auxiliary(false).is_empty());
            assert!(!auxiliary_head_was_used(&layers));
            let outputs = auxiliary(true);
            assert!(auxiliary_head_was_used(&layers));
            assert_eq!(outputs.len(), 1);
            assert_eq!(outputs[0].dims(), [2, 10]);
        }
    }
}
