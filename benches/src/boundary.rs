//! What crosses a cut between two stages, and how long its transfer takes.

use std::hint::black_box;

use burn::tensor::Device;
use stovepipe::prelude::*;

use crate::{
    Failure,
    classifier::Classifier,
    flows::{attach, bytes, detach, to_device},
    measure::time,
    recipe::ModelRecipe,
};

/// A transfer is so short that it is repeated.
const REPEATS: usize = 100;

/// A micro-batch between two stages on one device.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// Its bytes.
    pub bytes: usize,
    /// Seconds of its transfer.
    pub transfer: f64,
    /// Seconds of a copy of as many bytes.
    pub copy: f64,
}

/// Measures the cut after the first `after` layers.
pub fn boundary<L: Classifier>(model: &ModelRecipe<L>, after: usize) -> Result<Boundary, Failure> {
    let (input, _) = model.batch(model.samples);
    let mut flow = attach(L::enter(input), false);
    for layer in &model.layers()?[..after] {
        flow = layer.forward(flow, &mut Context::new(&(), true))?;
    }
    let flow = detach(flow);
    let (bytes, device) = (bytes(flow.clone()), Device::flex());
    let (transfer, ()) = time(|| {
        for _ in 0..REPEATS {
            black_box(to_device(flow.clone(), &device));
        }
    });
    let values = vec![1_u8; bytes];
    let (copy, ()) = time(|| (0..REPEATS).for_each(|_| drop(black_box(values.clone()))));
    let [transfer, copy] = [transfer, copy].map(|seconds| seconds / REPEATS as f64);
    Ok(Boundary {
        bytes,
        transfer,
        copy,
    })
}
