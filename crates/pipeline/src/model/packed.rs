//! Flows in main memory, to send them to another process.

use std::collections::VecDeque;

use burn::tensor::{Device, Tensor, TensorData, kind::Basic};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a [flow](crate::Flow) consists of: its tensors, and numbers that say which these are, such as the
/// length of a vector or the variant of an enum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packed {
    /// The numbers that are left, in order.
    pub numbers: VecDeque<u64>,
    /// The tensors that are left, in order.
    pub tensors: VecDeque<TensorData>,
}

/// Why a flow cannot be packed or unpacked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PackError {
    /// Its type does not say how.
    #[error(
        "{0} cannot be sent to another process: derive `Flow`, or write `pack` and `unpack` for it"
    )]
    NotPacked(&'static str),
    /// A device does not return a tensor.
    #[error("a tensor could not be read from its device")]
    NotRead(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What was packed is another flow.
    #[error("what was packed is another flow: {0}")]
    Other(String),
}

impl Packed {
    /// Appends a number.
    pub fn push_number(&mut self, number: usize) {
        self.numbers.push_back(number as u64);
    }

    /// Takes the next number out.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn number(&mut self) -> Result<usize, PackError> {
        let number = self.numbers.pop_front();
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| PackError::Other("a number is missing".to_owned()))
    }

    /// Appends a tensor.
    ///
    /// # Errors
    ///
    /// If its device does not return it.
    pub fn push_tensor<const D: usize, K: Basic>(
        &mut self,
        tensor: Tensor<D, K>,
    ) -> Result<(), PackError> {
        let data = tensor.try_into_data();
        let data = data.map_err(|error| PackError::NotRead(error.into()))?;
        self.tensors.push_back(data);
        Ok(())
    }

    /// Takes the next tensor out, in the type that it had.
    ///
    /// # Errors
    ///
    /// If there is none, or it has another rank.
    pub fn tensor<const D: usize, K: Basic>(
        &mut self,
        device: &Device,
    ) -> Result<Tensor<D, K>, PackError> {
        let missing = || PackError::Other("a tensor is missing".to_owned());
        let data = self.tensors.pop_front().ok_or_else(missing)?;
        let rank = data.shape().len();
        if rank != D {
            let text = format!("a tensor has rank {rank}, not {D}");
            return Err(PackError::Other(text));
        }
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (device, dtype)))
    }
}
