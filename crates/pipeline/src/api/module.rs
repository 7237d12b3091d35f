//! A pipeline as a Burn module.
//!
//! Not derived: Burn's derive moves a module as a whole, but `fork` and `to_device` must leave every layer
//! on its stage's device. Use `into_layers` to move layers.

use std::fmt;

use burn::{
    module::{
        Content, Devices, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault,
        ModuleMapper, ModuleVisitor,
    },
    tensor::Device,
};

use crate::{
    api::pipeline::{Pipeline, Stage},
    model::layer::Layer,
};

/// The names of the list of layers and of its type in records.
const FIELD: &str = "layers";
const CONTAINER: &str = "Struct:Pipeline";
const LIST: &str = "Vec";

impl<L: Layer> Module for Pipeline<L> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        (self.own_layers()).fold(devices, |devices, layer| layer.collect_devices(devices))
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.enter_module(FIELD, CONTAINER);
        // As Burn visits a vector.
        for (index, layer) in self.layers().iter().enumerate() {
            if self.engine.is_own_layer(index) {
                visitor.enter_module(&index.to_string(), LIST);
                layer.visit(visitor);
                visitor.exit_module(&index.to_string(), LIST);
            }
        }
        visitor.exit_module(FIELD, CONTAINER);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        mapper.enter_module(FIELD, CONTAINER);
        let mapped = self.with_layers(|index, layer| {
            mapper.enter_module(&index.to_string(), LIST);
            let mapped = layer.map(mapper);
            mapper.exit_module(&index.to_string(), LIST);
            mapped
        });
        mapper.exit_module(FIELD, CONTAINER);
        mapped
    }

    fn train(self) -> Self {
        self.with_layers(|_, layer| layer.train())
    }

    fn valid(&self) -> Self {
        self.clone().with_layers(|_, layer| layer.valid())
    }

    fn materialize(self) -> Self {
        self.with_layers(|_, layer| layer.materialize())
    }
}

impl<L: Layer> ModuleDisplayDefault for Pipeline<L> {
    fn content(&self, content: Content) -> Option<Content> {
        let stages = self.stages().into_iter().zip(self.stage_layers());
        let add = |content: Content, (index, (stage, layers)): (usize, (Stage, &[L]))| {
            let names: Vec<_> = layers.iter().map(Layer::name).collect();
            let (names, parameters) = (names.join(", "), stage.parameters);
            let title = format!("stage {index} on {}", stage.device_name);
            content.add_debug_attribute(&title, &format_args!("{names} ({parameters} parameters)"))
        };
        stages.enumerate().fold(content, add).optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl<L: Layer> ModuleDisplay for Pipeline<L> {}

impl<L: Layer> fmt::Display for Pipeline<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ModuleDisplay::format(self, DisplaySettings::default()))
    }
}
