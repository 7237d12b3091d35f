//! What crosses a cut between two stages, and what it takes to hand it over.

use std::hint::black_box;

use burn::tensor::Device;
use serde_json::{Value, json};
use stovepipe::prelude::*;

use crate::{
    Failure,
    classifier::Classifier,
    flows::{attach, bytes, detach, to_device},
    measure::time,
    recipe::Recipe,
    report::number,
};

/// Times that something so short is repeated.
const REPEATS: usize = 100;

/// The cut after so many layers: their number, KiB, microseconds to hand over, microseconds to copy.
///
/// # Errors
///
/// If a layer fails.
pub fn boundary_row<L: Classifier>(model: &Recipe<L>, after: usize) -> Result<Value, Failure> {
    let (input, _) = model.batch(model.samples);
    let mut flow = attach(L::enter(input), false);
    for layer in &model.layers()?[..after] {
        flow = layer.forward(flow, &mut Context::new(&(), true))?;
    }
    let flow = detach(flow);
    let size = bytes(flow.clone());
    let device = Device::flex();
    let (hand_over, ()) = time(|| {
        for _ in 0..REPEATS {
            black_box(to_device(flow.clone(), &device));
        }
    });
    let values = vec![1_u8; size];
    let (copy, ()) = time(|| (0..REPEATS).for_each(|_| drop(black_box(values.clone()))));
    let [hand_over, copy] = [hand_over, copy].map(|s| number(1e6 * s / REPEATS as f64));
    Ok(json!([
        after,
        number(size as f64 / 1024.0),
        hand_over,
        copy
    ]))
}
