//! Operations of the benchmarks on any flow between layers.

use burn::tensor::{Int, Tensor};
use stovepipe::pipeline::{Flow, FlowMapper};

/// Artificial gradients of a flow: one flat tensor for each of its tensors.
pub fn gradients_for<F: Flow>(flow: F) -> Vec<Tensor<1>> {
    struct Gradients(Vec<Tensor<1>>);

    impl FlowMapper for Gradients {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let length = tensor.dims().iter().product::<usize>();
            let places = Tensor::<1, Int>::arange(0..length as i64, &tensor.device().inner());
            self.0.push((places.float() * 0.37).sin());
            tensor
        }
    }

    let mut gradients = Gradients(Vec::new());
    let _ = flow.map(&mut gradients);
    gradients.0
}

/// Σ (y · g).sum(): the scalar whose backward pass starts with these gradients.
pub fn seed<F: Flow>(flow: F, gradients: &[Tensor<1>]) -> Option<Tensor<1>> {
    struct Seed<'a>(std::slice::Iter<'a, Tensor<1>>, Option<Tensor<1>>);

    impl FlowMapper for Seed<'_> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            if let Some(gradient) = self.0.next().filter(|_| tensor.is_tracked()) {
                let gradient = gradient.clone().autodiff();
                let length = gradient.dims();
                let product = (tensor.clone().reshape(length) * gradient).sum();
                self.1 = Some(match self.1.take() {
                    Some(sum) => sum + product,
                    None => product,
                });
            }
            tensor
        }
    }

    let mut seed = Seed(gradients.iter(), None);
    let _ = flow.map(&mut seed);
    seed.1
}

pub fn bytes<F: Flow>(flow: F) -> usize {
    struct Bytes(usize);

    impl FlowMapper for Bytes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 += tensor.shape().num_elements() * size_of::<f32>();
            tensor
        }
    }

    let mut bytes = Bytes(0);
    let _ = flow.map(&mut bytes);
    bytes.0
}
