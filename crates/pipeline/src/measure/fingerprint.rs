//! Finds layers that cost the same, so that one measurement serves all.

use std::fmt::Write;

use burn::{
    module::{ModuleVisitor, Param},
    tensor::{Bool, DType, Int, Tensor},
};

use crate::model::{
    flow::{Flow, FlowMapper},
    layer::Layer,
};

/// All that a layer's cost can depend on: its settings and the shapes of its parameters and its input, but
/// not the values of the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(String);

impl Fingerprint {
    /// The fingerprint of a layer and its input; `None` if it sends or takes skips.
    pub(crate) fn of<L: Layer>(layer: &L, flow: &L::Flow) -> Option<Self> {
        if !layer.skips().is_empty() {
            return None;
        }
        let mut shapes = Shapes(layer_text(layer));
        let _ = flow.clone().map(&mut shapes);
        Some(Self(shapes.0))
    }
}

/// A layer's name and settings, and the shapes of its parameters.
pub(super) fn layer_text<L: Layer>(layer: &L) -> String {
    let mut shapes = Shapes(String::new());
    layer.visit(&mut shapes);
    // Burn's `Display` shows as much, but would allocate lazy parameters to show their shapes.
    let settings = without_ids(&format!("{layer:?}"));
    format!("{} {} {settings} ", layer.name(), shapes.0)
}

/// A module's debug text without the ids of its parameters, which are unique.
fn without_ids(shown: &str) -> String {
    let mut text = shown.to_owned();
    for (before, after) in [("Param: ", " - "), ("ParamId { value: ", "}")] {
        let mut parts = text.split(before);
        let mut kept = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.split_once(after).map_or(part, |(_, rest)| rest);
            kept += before;
            kept += rest;
        }
        text = kept;
    }
    text
}

/// Collects shapes in the order of a visit.
struct Shapes(String);

impl Shapes {
    fn add(&mut self, kind: char, shape: &[usize]) {
        let _ = write!(self.0, "{kind}{shape:?} ");
    }
}

impl ModuleVisitor for Shapes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Asked whether it trains, a lazy parameter would be allocated; what is measured for it trains.
        let trains = !param.is_initialized() || param.is_require_grad();
        let kind = if trains { 'p' } else { 'c' };
        if param.is_initialized() && param.val().dtype() != DType::F32 {
            let _ = write!(self.0, "{:?}", param.val().dtype());
        }
        self.add(kind, &param.lazy_shape().dims::<D>());
    }
}

impl FlowMapper for Shapes {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.add('f', &tensor.dims());
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.add('i', &tensor.dims());
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.add('b', &tensor.dims());
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::without_ids;

    #[test]
    fn ids_of_parameters_are_removed() {
        let shown =
            "A { w: Param: a1b2 - ParamMapper, s: State { id: ParamId { value: 12 }, n: 3 } }";
        let expected = "A { w: Param: ParamMapper, s: State { id: ParamId { value: , n: 3 } }";
        assert_eq!(without_ids(shown), expected);
        assert_eq!(without_ids("A { n: 3 }"), "A { n: 3 }");
    }
}
