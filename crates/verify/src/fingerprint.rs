//! A number that is another one for other values, to compare those of several processes.

use std::hash::{DefaultHasher, Hasher};

use burn::tensor::{Bool, Int, Tensor, kind::Basic};
use stovepipe_pipeline::{Flow, FlowMapper};

#[derive(Default)]
pub(crate) struct Fingerprint(DefaultHasher);

impl Fingerprint {
    pub(crate) fn add<F: Flow>(&mut self, flow: &F) {
        let _ = flow.clone().map(self);
    }

    pub(crate) fn add_numbers(&mut self, numbers: &[f32]) {
        numbers.iter().for_each(|x| self.0.write_u32(x.to_bits()));
    }

    pub(crate) fn finish(&self) -> String {
        format!("{:016x}", self.0.finish())
    }

    fn add_tensor<const D: usize, K: Basic>(&mut self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        let data = tensor.clone().into_data();
        data.shape()
            .iter()
            .for_each(|&size| self.0.write_usize(size));
        self.0.write(data.as_bytes());
        tensor
    }
}

impl FlowMapper for Fingerprint {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.add_tensor(tensor)
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.add_tensor(tensor)
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.add_tensor(tensor)
    }
}
