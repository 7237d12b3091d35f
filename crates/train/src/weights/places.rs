//! The tensors of a model.

use burn::{
    module::{ModuleVisitor, Param, ParamId},
    store::ModuleContext,
    tensor::{Bool, DType, Int, Shape, Tensor},
};
use stovepipe_pipeline::Layer;

/// What Burn calls the statistics of batch norms.
const STATISTICS: [&str; 2] = ["running_mean", "running_var"];

pub(super) struct Place {
    /// Its name in files: without the names of enum variants.
    pub(super) name: String,
    /// The types of its modules.
    containers: Vec<String>,
    pub(super) shape: Shape,
    /// The type of its numbers, if they are floating-point ones.
    pub(super) float: Option<DType>,
    /// That of its parameter: tied ones have the same.
    pub(super) id: ParamId,
    /// Whether it is a parameter that training leaves as it is.
    pub(super) is_frozen: bool,
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

/// Those of a pipeline's layers, by their names in the pipeline.
pub(super) fn places<L: Layer>(layers: &[L]) -> Vec<Place> {
    let mut finder = Finder::default();
    finder.visit(layers);
    finder.places
}

/// What is wrong with a model's numbers, if anything is: they would fail a step, or make every answer the same.
pub(super) fn impossible<L: Layer>(layers: &[L]) -> Option<String> {
    let mut finder = Finder {
        reads: true,
        ..Finder::default()
    };
    finder.visit(layers);
    finder.impossible
}

#[derive(Default)]
struct Finder {
    path: Vec<String>,
    containers: Vec<String>,
    places: Vec<Place>,
    /// Whether numbers are read.
    reads: bool,
    impossible: Option<String>,
}

impl Finder {
    fn visit<L: Layer>(&mut self, layers: &[L]) {
        self.enter_module("layers", "Struct:Pipeline");
        for (index, layer) in layers.iter().enumerate() {
            self.enter_module(&index.to_string(), "Vec");
            layer.visit(self);
            self.exit_module(&index.to_string(), "Vec");
        }
        self.exit_module("layers", "Struct:Pipeline");
    }

    fn add(&mut self, id: ParamId, shape: Shape, float: Option<DType>, is_frozen: bool) {
        let name = self.path.join(".");
        self.places.push(Place {
            // Forward passes change statistics.
            is_frozen: is_frozen && !STATISTICS.iter().any(|own| name.ends_with(own)),
            name,
            containers: self.containers.clone(),
            id,
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
        // To ask a parameter that has no value yet would draw one.
        let is_frozen = parameter.is_initialized() && !parameter.is_require_grad();
        self.add(parameter.id, parameter.lazy_shape(), Some(float), is_frozen);
        if self.reads && self.impossible.is_none() && parameter.is_initialized() {
            let (values, name) = (parameter.val(), self.path.join("."));
            let holds =
                |checked: Tensor<D, Bool>| checked.all().into_data().iter::<bool>().all(|is| is);
            let is_variance = name.ends_with(STATISTICS[1]);
            if !holds(values.clone().is_finite()) {
                self.impossible = Some(format!("{name} has numbers that are NaN or infinite"));
            } else if is_variance && !holds(values.greater_equal_elem(0.0)) {
                self.impossible = Some(format!("{name} has negative numbers, but is a variance"));
            }
        }
    }

    fn visit_int<const D: usize>(&mut self, parameter: &Param<Tensor<D, Int>>) {
        self.add(parameter.id, parameter.lazy_shape(), None, false);
    }

    fn visit_bool<const D: usize>(&mut self, parameter: &Param<Tensor<D, Bool>>) {
        self.add(parameter.id, parameter.lazy_shape(), None, false);
    }
}

/// Whether this is Burn's type around an enum's variant.
fn is_variant(container: &str) -> bool {
    container.starts_with("Enum:")
}
