//! The published sizes, to the last parameter, without allocating one.
#![allow(clippy::unwrap_used)]

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::count_parameters;

/// Counts the float tensors that are there.
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
        let is_statistic = self
            .path
            .last()
            .is_some_and(|name| name.starts_with("running_"));
        let count = if is_statistic {
            &mut self.statistics
        } else {
            &mut self.parameters
        };
        *count += usize::from(param.is_initialized());
    }
}

fn allocated(layers: &Vec<AmoebaLayer>) -> Allocated {
    let mut allocated = Allocated::default();
    layers.visit(&mut allocated);
    allocated
}

#[test]
fn the_published_models_have_their_parameters() {
    for (layers, filters, parameters) in [
        (18, 208, 81_505_540),
        (18, 256, 122_470_120),
        (18, 416, 319_024_120),
        (18, 544, 542_734_840),
        (36, 544, 1_055_832_376),
        (72, 512, 1_844_858_344),
    ] {
        let model = AmoebaNetDConfig::new(layers, filters, 1000)
            .init(&Device::flex())
            .unwrap();
        assert_eq!(model.len(), layers + 6);
        assert_eq!(
            count_parameters(&model),
            parameters,
            "({layers}, {filters})"
        );
        let allocated = allocated(&model);
        assert_eq!(allocated.parameters, 0, "({layers}, {filters})");
        assert!(allocated.statistics > 0);
    }
}

#[test]
fn the_auxiliary_head_adds_parameters_to_one_cell() {
    for stem in [Stem::ImageNet, Stem::Small] {
        let config = AmoebaNetDConfig::new(6, 8, 10).with_stem(stem);
        let count = |config: AmoebaNetDConfig| -> Vec<usize> {
            config
                .init(&Device::flex())
                .unwrap()
                .iter()
                .map(count_parameters)
                .collect()
        };
        let plain = count(config.clone());
        let with_head = count(config.with_auxiliary(true));
        let added: Vec<_> = plain.iter().zip(&with_head).map(|(a, b)| b - a).collect();
        // Four states of 2·8 channels; two convolutions with batch norm; a linear layer.
        let head = 64 * 128 + 2 * 128 + 128 * 768 + 2 * 768 + 768 * 10 + 10;
        assert_eq!(added, [0, 0, 0, 0, 0, 0, 0, head, 0, 0, 0, 0]);
    }
}
