//! The published sizes, without allocating a parameter.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::count_parameters;

#[derive(Default)]
struct Allocated {
    path: Vec<String>,
    parameters: usize,
    statistics: usize,
}

impl ModuleVisitor for Allocated {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.last().map_or("", String::as_str);
        let count = usize::from(param.is_initialized());
        match name.starts_with("running_") {
            true => self.statistics += count,
            false => self.parameters += count,
        }
    }
}

fn check(model: &Vec<AmoebaLayer>, [layers, filters, parameters]: [usize; 3]) {
    let what = format!("({layers}, {filters})");
    assert_eq!(model.len(), layers + 6);
    assert_eq!(count_parameters(model), parameters, "{what}");
    let mut allocated = Allocated::default();
    model.visit(&mut allocated);
    assert_eq!(allocated.parameters, 0, "{what}");
    assert!(allocated.statistics > 0);
}

#[test]
fn the_published_amoebanet_d_have_their_parameters() {
    for (layers, filters, parameters) in [
        (18, 208, 81_505_540),
        (18, 256, 122_470_120),
        (18, 416, 319_024_120),
        (18, 544, 542_734_840),
        (36, 544, 1_055_832_376),
        (72, 512, 1_844_858_344),
    ] {
        let config = AmoebaNetDConfig::new(layers, filters, 1000);
        let model = config.init(&Device::flex()).unwrap();
        check(&model, [layers, filters, parameters]);
    }
}

/// The parameters of AmoebaNet-B, computed from its tables, for D a multiple of 16.
fn amoebanet_b_from_tables(layers: usize, d: usize, classes: usize) -> usize {
    // A 1×1 convolution with batch norm, also for an input of a cell that differs from the other.
    let unit = |from: usize, to: usize| from * to + 2 * to;
    // Four 1×1 convolutions, and twice two of 3×3, separable: 4 (c² + 2c) + 4 (9c + c² + 2c).
    let normal = |c: usize| 8 * c * c + 52 * c;
    // 3×3 on q = c/4 channels: 2cq + 9q² + 4q + 2c. Separable, 5×5: 2 (25c + c² + 2c), and 3×3:
    // 2 (9c + c² + 2c). A 1×1 convolution: c² + 2c.
    let reduction = |c: usize| 5 * c * c + 78 * c + (17 * c * c / 16 + 3 * c);

    // The input from two cells before needs nothing if width and size fit.
    let other =
        |from: usize, to: usize, halves: bool| usize::from(from != to || halves) * unit(from, to);

    // The stem: a convolution, and two reduction cells of d/4 and d/2 channels with two output states.
    let mut total = 27 * d / 4 + d / 2;
    total += unit(d / 4, d / 4) + other(d / 4, d / 4, false) + reduction(d / 4);
    total += unit(d / 2, d / 2) + other(d / 4, d / 2, true) + reduction(d / 2);
    // The widths of the last two cells' outputs.
    let (mut last, mut before) = (d, d / 2);
    for c in [d, 2 * d, 4 * d] {
        if c > d {
            total += unit(last, c) + other(before, c, false) + reduction(c);
            (last, before) = (2 * c, last);
        }
        for i in 0..layers / 3 {
            total += unit(last, c) + other(before, c, i == 0) + normal(c);
            (last, before) = (4 * c, last);
        }
    }
    total + 16 * d * classes + classes
}

#[test]
fn amoebanet_b_has_the_parameters_of_its_tables() {
    for (layers, filters, classes) in [(18, 512, 1000), (3, 16, 10), (6, 32, 7)] {
        let config = AmoebaNetBConfig::new(layers, filters, classes);
        let model = config.init(&Device::flex()).unwrap();
        let expected = amoebanet_b_from_tables(layers, filters, classes);
        check(&model, [layers, filters, expected]);
    }
}

#[test]
fn the_published_amoebanet_b_has_557_million_parameters() {
    let config = AmoebaNetBConfig::new(18, 512, 1000);
    let model = config.init(&Device::flex()).unwrap();
    let millions = count_parameters(&model) as f64 / 1e6;
    assert_eq!(millions.round(), 557.0, "{millions}");
}

#[test]
fn the_auxiliary_head_adds_parameters_to_one_cell() {
    let device = Device::flex();
    let models = |stem, auxiliary| {
        let d = AmoebaNetDConfig::new(6, 8, 10).with_stem(stem);
        let b = AmoebaNetBConfig::new(6, 8, 10).with_stem(stem);
        [
            d.with_auxiliary(auxiliary).init(&device).unwrap(),
            b.with_auxiliary(auxiliary).init(&device).unwrap(),
        ]
    };
    for stem in [Stem::ImageNet, Stem::Small] {
        for (plain, with_head) in models(stem, false).iter().zip(&models(stem, true)) {
            let counts = |layers: &[AmoebaLayer]| layers.iter().map(count_parameters).collect();
            let (before, after): (Vec<_>, Vec<_>) = (counts(plain), counts(with_head));
            let added: Vec<_> = before.iter().zip(after).map(|(a, b)| b - a).collect();
            // Four states of 2·8 channels; two convolutions with batch norm; a linear layer.
            let head = 64 * 128 + 2 * 128 + 128 * 768 + 2 * 768 + 768 * 10 + 10;
            assert_eq!(added, [0, 0, 0, 0, 0, 0, 0, head, 0, 0, 0, 0]);
        }
    }
}
