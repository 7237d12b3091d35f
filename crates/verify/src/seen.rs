//! What was seen of a run, and how it differs from what was seen of another.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_pipeline::{Flow, FlowMapper};

/// Numbers by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen(pub(crate) Vec<Named>);

/// The numbers of a tensor, and its name.
type Named = (String, Vec<f32>);

/// A norm below this share of that of all numbers counts as this much: what should be zero is noise, and
/// noise has no relative size.
const FLOOR: f64 = 0.01;

impl Seen {
    pub(crate) fn number(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), vec![value as f32]));
    }

    /// All floats of a flow.
    pub(crate) fn flow<F: Flow>(&mut self, name: &str, flow: &F) {
        struct Collect<'a> {
            name: &'a str,
            count: usize,
            seen: &'a mut Seen,
        }

        impl FlowMapper for Collect<'_> {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                let name = match self.count {
                    0 => self.name.to_owned(),
                    count => format!("{} {count}", self.name),
                };
                self.count += 1;
                self.seen.0.push((name, numbers(tensor.clone())));
                tensor
            }
        }

        let mut collect = Collect {
            name,
            count: 0,
            seen: self,
        };
        let _ = flow.clone().map(&mut collect);
    }

    /// Parameters and running statistics.
    pub(crate) fn module<M: Module>(&mut self, prefix: &str, module: &M) {
        // A module that trains shows statistics that are one update old.
        self.visit(prefix, &module.valid(), None);
    }

    /// The gradients of parameters.
    pub(crate) fn gradients<M: Module>(
        &mut self,
        prefix: &str,
        module: &M,
        gradients: &GradientsParams,
    ) {
        self.visit(prefix, module, Some(gradients));
    }

    fn visit<M: Module>(&mut self, prefix: &str, module: &M, gradients: Option<&GradientsParams>) {
        struct Visit<'a> {
            path: Vec<String>,
            prefix: &'a str,
            gradients: Option<&'a GradientsParams>,
            seen: &'a mut Seen,
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
                    self.seen.0.push((name, numbers(found)));
                }
            }
        }

        module.visit(&mut Visit {
            path: Vec::new(),
            prefix,
            gradients,
            seen: self,
        });
    }

    /// Whether all is the same to the bit, and if not, the largest difference.
    pub(crate) fn same_bits(&self, expected: &Self) -> Difference {
        let mut largest = self.unlike(expected);
        for ((name, found), (_, expected)) in self.0.iter().zip(&expected.0) {
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            if !found.iter().zip(expected).all(same) {
                // Not zero, however small: the bits are not the same.
                let size = relative(found, expected, norm(expected)).max(f64::MIN_POSITIVE);
                largest.take(size, name);
            }
        }
        largest
    }

    /// The largest difference, relative to the norm of what was expected.
    pub(crate) fn difference(&self, expected: &Self) -> Difference {
        let mut largest = self.unlike(expected);
        let all = expected.0.iter().map(|(_, numbers)| norm(numbers).powi(2));
        let floor = FLOOR * all.sum::<f64>().sqrt();
        for ((name, found), (_, expected)) in self.0.iter().zip(&expected.0) {
            largest.take(relative(found, expected, norm(expected).max(floor)), name);
        }
        largest
    }

    /// An infinite difference, if there are not the same things to be seen.
    fn unlike(&self, expected: &Self) -> Difference {
        let mut difference = Difference::default();
        let pairs = self.0.iter().zip(&expected.0);
        let unlike = |((a, x), (b, y)): (&Named, &Named)| {
            (a != b || x.len() != y.len())
                .then(|| format!("{a} ({}) for {b} ({})", x.len(), y.len()))
        };
        if let Some(place) = pairs.map(unlike).find_map(|unlike| unlike) {
            difference.take(f64::INFINITY, &place);
        } else if self.0.len() != expected.0.len() {
            let place = format!("{} tensors for {}", self.0.len(), expected.0.len());
            difference.take(f64::INFINITY, &place);
        }
        difference
    }
}

/// The largest difference that was found, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Difference {
    pub(crate) size: f64,
    pub(crate) place: Option<String>,
}

impl Difference {
    fn take(&mut self, size: f64, place: &str) {
        // What is no number is larger than all.
        let size = if size.is_nan() { f64::INFINITY } else { size };
        if size > self.size {
            self.size = size;
            self.place = Some(place.to_owned());
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
    let difference = squares.sum::<f64>().sqrt();
    match difference == 0.0 {
        true => 0.0,
        false => difference / scale.max(f64::MIN_POSITIVE),
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    // Other kinds of floats become f32 exactly or nearly.
    let data = tensor.inner().into_data().convert::<f32>();
    data.try_to_vec().unwrap_or_default()
}
