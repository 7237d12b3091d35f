//! Which layers are alike, so that one of them can be measured for all.

use std::fmt::Write;

use burn::{
    module::{ModuleVisitor, Param},
    tensor::{Bool, Int, Tensor},
};

use crate::model::{
    flow::{Flow, FlowMapper},
    layer::Layer,
};

/// All that a layer's cost can depend on: what it is made of, the shapes of its parameters and of what comes in. The
/// values of the parameters are no part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Likeness(String);

impl Likeness {
    /// Of a layer and what comes in; none if it sends or takes skips, and so does not stand for itself.
    pub(crate) fn of<L: Layer>(layer: &L, flow: &L::Flow) -> Option<Self> {
        if !layer.skips().is_empty() {
            return None;
        }
        let mut shapes = Shapes(String::new());
        layer.visit(&mut shapes);
        let _ = flow.clone().map(&mut shapes);
        // Burn's `Display` shows as much, but would allocate lazy parameters to show their shapes.
        let settings = without_names(&format!("{layer:?}"));
        Some(Self(format!("{} {} {settings}", layer.name(), shapes.0)))
    }
}

/// What a module shows, but for what its parameters are called: each has a name of its own.
fn without_names(shown: &str) -> String {
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

/// Notes shapes in the order of a visit.
struct Shapes(String);

impl Shapes {
    fn note(&mut self, kind: char, shape: &[usize]) {
        let _ = write!(self.0, "{kind}{shape:?} ");
    }
}

impl ModuleVisitor for Shapes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Asked whether it trains, a lazy parameter would be allocated; what is measured for it trains.
        let trains = !param.is_initialized() || param.is_require_grad();
        let kind = if trains { 'p' } else { 'c' };
        self.note(kind, &param.lazy_shape().dims::<D>());
    }
}

impl FlowMapper for Shapes {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.note('f', &tensor.dims());
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.note('i', &tensor.dims());
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.note('b', &tensor.dims());
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::without_names;

    #[test]
    fn names_of_parameters_are_left_out() {
        let shown =
            "A { w: Param: a1b2 - ParamMapper, s: State { id: ParamId { value: 12 }, n: 3 } }";
        let expected = "A { w: Param: ParamMapper, s: State { id: ParamId { value: , n: 3 } }";
        assert_eq!(without_names(shown), expected);
        assert_eq!(without_names("A { n: 3 }"), "A { n: 3 }");
    }
}
