//! The numbers that a run produced, and how they differ from those of another run.

use std::collections::{BTreeSet, HashMap, HashSet};

use burn::{
    module::{ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{Flow, FlowMapper, Layer};

/// The numbers of tensors, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot(pub(crate) Vec<Named>);

type Named = (String, Vec<f32>);

/// A difference is relative to the norm of its tensor, or to this share of the norm of all: a gradient
/// that should be zero is noise and has no relative size.
const FLOOR: f64 = 0.01;

impl Snapshot {
    /// Adds all floats of a flow.
    pub(crate) fn flow<F: Flow>(&mut self, name: &str, flow: &F) {
        struct Collect<'a>(&'a str, Vec<Named>);

        impl FlowMapper for Collect<'_> {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                let name = match self.1.len() {
                    0 => self.0.to_owned(),
                    count => format!("{} {count}", self.0),
                };
                self.1.push((name, numbers(tensor.clone())));
                tensor
            }
        }

        let mut collect = Collect(name, Vec::new());
        let _ = flow.clone().map(&mut collect);
        self.0.extend(collect.1);
    }

    /// Adds parameters and running statistics of layers, which are given with their indices.
    pub(crate) fn layers<'a, L: Layer>(
        &mut self,
        prefix: &str,
        layers: impl IntoIterator<Item = (usize, &'a L)>,
    ) {
        self.visit(prefix, layers, None);
    }

    /// Adds the loss of a step, and the gradients of layers' parameters. One that layers share has one
    /// gradient, under the name that it has in the first of them.
    pub(crate) fn loss_and_gradients<'a, L: Layer>(
        &mut self,
        step: &str,
        loss: f64,
        layers: impl IntoIterator<Item = (usize, &'a L)>,
        gradients: &GradientsParams,
    ) {
        self.0.push((format!("loss of {step}"), vec![loss as f32]));
        self.visit(&format!("{step}, gradient of "), layers, Some(gradients));
    }

    fn visit<'a, L: Layer>(
        &mut self,
        prefix: &str,
        layers: impl IntoIterator<Item = (usize, &'a L)>,
        gradients: Option<&GradientsParams>,
    ) {
        struct Visit<'a> {
            path: Vec<String>,
            prefix: &'a str,
            gradients: Option<&'a GradientsParams>,
            with_gradient: HashSet<ParamId>,
            found: &'a mut Vec<Named>,
        }

        impl ModuleVisitor for Visit<'_> {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.path.push(name.to_owned());
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.pop();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let found = match self.gradients {
                    None => Some(param.val()),
                    Some(gradients) => gradients
                        .get::<D>(param.id)
                        .filter(|_| self.with_gradient.insert(param.id)),
                };
                if let Some(found) = found {
                    let name = format!("{}{}", self.prefix, self.path.join("."));
                    self.found.push((name, numbers(found)));
                }
            }
        }

        let mut visit = Visit {
            path: Vec::new(),
            prefix,
            gradients,
            with_gradient: HashSet::new(),
            found: &mut self.0,
        };
        for (index, layer) in layers {
            visit.path.push(index.to_string());
            // The statistics that a visitor reads in training mode are one update old.
            layer.valid().visit(&mut visit);
            visit.path.pop();
        }
    }

    /// How these numbers differ from others. If `exact`, any other bit is a difference.
    pub(crate) fn compare(&self, expected: &Self, exact: bool) -> Comparison {
        let names = |all: &Self| all.0.iter().map(|(name, _)| name.clone()).collect();
        Comparison {
            largest: self.largest_difference(expected, exact),
            found: names(self),
            expected: names(expected),
        }
    }

    /// The largest difference of a number that is expected.
    pub(crate) fn largest_difference(&self, expected: &Self, exact: bool) -> Difference {
        let squares = expected.0.iter().map(|(_, numbers)| norm(numbers).powi(2));
        let floor = if exact {
            0.0
        } else {
            FLOOR * squares.sum::<f64>().sqrt()
        };
        let expected: HashMap<_, _> = (expected.0.iter())
            .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
            .collect();
        let mut largest = Difference::default();
        for (name, found) in &self.0 {
            let expected = expected.get(name.as_str()).copied().unwrap_or_default();
            if found.len() != expected.len() {
                let [found, expected] = [found, expected].map(<[f32]>::len);
                let lengths = format!("{name}, with {found} numbers for {expected}");
                largest.update(f64::INFINITY, &lengths);
                continue;
            }
            let bits = found.iter().map(|x| x.to_bits());
            if exact && bits.eq(expected.iter().map(|x| x.to_bits())) {
                continue;
            }
            let size = relative(found, expected, norm(expected).max(floor));
            // 0.0 and -0.0 have different bits.
            let is_zero = exact && size == 0.0;
            largest.update(if is_zero { f64::MIN_POSITIVE } else { size }, name);
        }
        largest
    }
}

/// How the numbers of a process differ from those that were expected there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    /// Relative to the norm of the expected tensor.
    largest: Difference,
    /// The names of the numbers. In several processes, each finds those of its layers.
    found: BTreeSet<String>,
    expected: BTreeSet<String>,
}

impl Comparison {
    /// The largest difference in all processes, of which `named` has the names.
    pub(crate) fn join(
        of_processes: Vec<Self>,
        named: impl Fn(usize) -> Option<String>,
    ) -> Difference {
        let (mut found, mut expected) = (BTreeSet::new(), BTreeSet::new());
        let mut largest = Difference::default();
        for (rank, own) in of_processes.into_iter().enumerate() {
            found.extend(own.found);
            expected.extend(own.expected);
            let Difference { size, place } = own.largest;
            match named(rank) {
                Some(process) => largest.update(size, &format!("{place}, in {process}")),
                None => largest.update(size, &place),
            }
        }
        if let Some(name) = expected.difference(&found).next() {
            largest.update(f64::INFINITY, &format!("{name}, which is missing"));
        }
        largest
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    pub(crate) size: f64,
    pub(crate) place: String,
}

impl Difference {
    fn update(&mut self, size: f64, place: &str) {
        let size = if size.is_nan() { f64::INFINITY } else { size };
        if size > self.size {
            self.size = size;
            self.place = place.to_owned();
        }
    }
}

fn norm(numbers: &[f32]) -> f64 {
    let squares = numbers.iter().map(|&x| f64::from(x).powi(2));
    squares.sum::<f64>().sqrt()
}

/// The norm of the difference over `scale`.
fn relative(found: &[f32], expected: &[f32], scale: f64) -> f64 {
    let pairs = found.iter().zip(expected);
    let squares = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    squares.sum::<f64>().sqrt() / scale.max(f64::MIN_POSITIVE)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    // Floats with fewer bits become f32 exactly.
    let data = tensor.inner().into_data().convert::<f32>();
    data.try_to_vec().unwrap_or_default()
}
