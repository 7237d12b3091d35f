//! The tensors of a model.

use burn::{
    module::{Module, ModuleVisitor, Param},
    store::ModuleContext,
    tensor::{Bool, DType, Int, Shape, Tensor},
};
use stovepipe_pipeline::{Layer, Pipeline};

/// A tensor of a model.
pub(super) struct Place {
    /// Its name in files: without the names of enum variants.
    pub(super) name: String,
    /// The types of its modules.
    containers: Vec<String>,
    pub(super) shape: Shape,
    /// The type of its numbers, if they are floating-point ones.
    pub(super) float: Option<DType>,
}

impl Place {
    /// Its place for Burn's adapters.
    pub(super) fn context(&self) -> ModuleContext<'_> {
        ModuleContext::new(&self.containers)
    }

    /// The name of the parameter in its module, and the prefix before it.
    pub(super) fn parameter(&self) -> (&str, &str) {
        match self.name.rfind('.') {
            Some(dot) => (&self.name[dot + 1..], &self.name[..=dot]),
            None => (&self.name, ""),
        }
    }
}

/// Finds them, and allocates none.
pub(super) fn places<L: Layer>(pipeline: &Pipeline<L>) -> Vec<Place> {
    let mut finder = Finder::default();
    pipeline.visit(&mut finder);
    finder.places
}

#[derive(Default)]
struct Finder {
    path: Vec<String>,
    containers: Vec<String>,
    places: Vec<Place>,
}

impl Finder {
    fn add(&mut self, shape: Shape, float: Option<DType>) {
        self.places.push(Place {
            name: self.path.join("."),
            containers: self.containers.clone(),
            shape,
            float,
        });
    }
}

impl ModuleVisitor for Finder {
    fn enter_module(&mut self, name: &str, container: &str) {
        if !is_variant(container) {
            self.path.push(name.to_owned());
        }
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        if !is_variant(container) {
            self.path.pop();
        }
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let float = if parameter.is_initialized() {
            parameter.val().dtype()
        } else {
            parameter.lazy_device().settings().float_dtype.into()
        };
        self.add(parameter.lazy_shape(), Some(float));
    }

    fn visit_int<const D: usize>(&mut self, parameter: &Param<Tensor<D, Int>>) {
        self.add(parameter.lazy_shape(), None);
    }

    fn visit_bool<const D: usize>(&mut self, parameter: &Param<Tensor<D, Bool>>) {
        self.add(parameter.lazy_shape(), None);
    }
}

/// Whether this is Burn's type around an enum's variant.
fn is_variant(container: &str) -> bool {
    container.starts_with("Enum:")
}
