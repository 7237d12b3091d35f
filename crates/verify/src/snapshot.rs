//! The numbers that a run produced, and how they differ from those of another run.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_pipeline::{Flow, FlowMapper};

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

    /// Adds parameters and running statistics.
    pub(crate) fn module<M: Module>(&mut self, prefix: &str, module: &M) {
        // The statistics that a visitor reads in training mode are one update old.
        self.visit(prefix, &module.valid(), None);
    }

    /// Adds the loss of a step, and the gradients of a module's parameters.
    pub(crate) fn loss_and_gradients<M: Module>(
        &mut self,
        step: &str,
        loss: f64,
        module: &M,
        gradients: &GradientsParams,
    ) {
        self.0.push((format!("loss of {step}"), vec![loss as f32]));
        self.visit(&format!("{step}, gradient of "), module, Some(gradients));
    }

    fn visit<M: Module>(&mut self, prefix: &str, module: &M, gradients: Option<&GradientsParams>) {
        struct Visit<'a> {
            path: Vec<String>,
            prefix: &'a str,
            gradients: Option<&'a GradientsParams>,
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
                    Some(gradients) => gradients.get::<D>(param.id),
                };
                if let Some(found) = found {
                    let name = format!("{}{}", self.prefix, self.path.join("."));
                    self.found.push((name, numbers(found)));
                }
            }
        }

        module.visit(&mut Visit {
            path: Vec::new(),
            prefix,
            gradients,
            found: &mut self.0,
        });
    }

    /// The largest difference, relative to the norm of the expected tensor. If `exact`, any other bit is a
    /// difference.
    pub(crate) fn difference(&self, expected: &Self, exact: bool) -> Difference {
        if let Some(place) = self.mismatch(expected) {
            let size = f64::INFINITY;
            return Difference { size, place };
        }
        let squares = expected.0.iter().map(|(_, numbers)| norm(numbers).powi(2));
        let floor = if exact {
            0.0
        } else {
            FLOOR * squares.sum::<f64>().sqrt()
        };
        let mut largest = Difference::default();
        for ((name, found), (_, expected)) in self.0.iter().zip(&expected.0) {
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

    /// The first tensor that has another name or length.
    fn mismatch(&self, expected: &Self) -> Option<String> {
        let mut pairs = self.0.iter().zip(&expected.0);
        let differs = |((a, x), (b, y)): &(&Named, &Named)| a != b || x.len() != y.len();
        if let Some(((a, x), (b, y))) = pairs.find(differs) {
            return Some(format!("{a} ({}) for {b} ({})", x.len(), y.len()));
        }
        let [found, expected] = [self.0.len(), expected.0.len()];
        (found != expected).then(|| format!("{found} tensors for {expected}"))
    }
}

/// The largest difference, and the name of its tensor.
#[derive(Clone, Debug, Default, PartialEq)]
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
