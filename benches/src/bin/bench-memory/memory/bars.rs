//! Memory by item, as bars.

use stovepipe::plan::MemoryUse;
use stovepipe_benches::footprint::{
    picture::{Bar, Part},
    published::Memory,
    trial::Items,
};

/// What is there in a step alone: kept inputs, activations, and a layer's gradients on their way into the sum.
pub(crate) fn in_a_step(memory: MemoryUse) -> u64 {
    let passing = memory.gradients - memory.parameters;
    memory.inputs + memory.activations + passing
}

pub(crate) fn measured_bar(items: &Items) -> Bar {
    let known = items.parameters + items.optimizer + items.gradients + items.activations;
    let parts = [
        (Part::Parameters, items.parameters),
        (Part::Optimizer, items.optimizer),
        (Part::Gradients, items.gradients),
        (Part::Activations, items.activations),
        (Part::Other, items.peak.saturating_sub(known)),
    ];
    bar("measured", parts.map(|(part, bytes)| (part, bytes as f64)))
}

pub(crate) fn predicted_bar(memory: MemoryUse, apart: bool) -> Bar {
    let model = match apart {
        true => vec![
            (Part::Parameters, memory.parameters),
            (Part::Optimizer, memory.optimizer),
        ],
        false => vec![(Part::Model, memory.parameters + memory.optimizer)],
    };
    let rest = [
        (Part::Gradients, memory.parameters),
        (Part::Activations, in_a_step(memory)),
    ];
    let parts = model.into_iter().chain(rest);
    bar("predicted", parts.map(|(part, bytes)| (part, bytes as f64)))
}

pub(crate) fn published_bar(label: &str, memory: Memory) -> Bar {
    let activations = memory.activations.map(|bytes| (Part::Activations, bytes));
    let parts = [(Part::Model, memory.model)].into_iter().chain(activations);
    let missing = memory
        .activations
        .is_none()
        .then_some("+ activations: out of memory");
    Bar {
        missing,
        ..bar(label, parts)
    }
}

fn bar(label: &str, parts: impl IntoIterator<Item = (Part, f64)>) -> Bar {
    Bar {
        label: label.to_owned(),
        parts: parts.into_iter().collect(),
        missing: None,
    }
}
