//! A pipeline as a Burn module.
//!
//! Not derived: Burn's derive moves a module as a whole, but `fork` and `to_device` must leave every layer
//! on its stage's device. Use `into_layers` to move layers.

use std::fmt;

use burn::{
    module::{
        Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    },
    tensor::Device,
};

use crate::{api::pipeline::Pipeline, model::layer::Layer};

/// The names of the list of layers and of its type in records.
const FIELD: &str = "layers";
const CONTAINER: &str = "Struct:Pipeline";

impl<L: Layer> Module for Pipeline<L> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        let layers = self.layers().iter();
        layers.fold(devices, |devices, layer| layer.collect_devices(devices))
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.enter_module(FIELD, CONTAINER);
        for (index, layer) in self.layers().iter().enumerate() {
            let index = index.to_string();
            visitor.enter_module(&index, "Vec");
            layer.visit(visitor);
            visitor.exit_module(&index, "Vec");
        }
        visitor.exit_module(FIELD, CONTAINER);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.with_layers(|layers| {
            mapper.enter_module(FIELD, CONTAINER);
            let layers = layers.map(mapper);
            mapper.exit_module(FIELD, CONTAINER);
            layers
        })
    }

    fn train(self) -> Self {
        self.with_layers(Module::train)
    }

    fn valid(&self) -> Self {
        self.clone().with_layers(|layers| layers.valid())
    }

    fn materialize(self) -> Self {
        self.with_layers(Module::materialize)
    }
}

impl<L: Layer> ModuleDisplayDefault for Pipeline<L> {
    fn content(&self, content: Content) -> Option<Content> {
        let stages = self.stages().into_iter().zip(self.stage_layers());
        let content = stages
            .enumerate()
            .fold(content, |content, (index, (stage, layers))| {
                let names: Vec<_> = layers.iter().map(Layer::name).collect();
                let (names, parameters) = (names.join(", "), stage.parameters);
                content.add_debug_attribute(
                    &format!("stage {index} on {}", stage.device_name),
                    &format_args!("{names} ({parameters} parameters)"),
                )
            });
        content.optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl<L: Layer> ModuleDisplay for Pipeline<L> {}

impl<L: Layer> fmt::Display for Pipeline<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ModuleDisplay::format(
            self,
            burn::module::DisplaySettings::default(),
        ))
    }
}
