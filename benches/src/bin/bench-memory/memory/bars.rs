//! Memory by item, as bars.

use stovepipe::plan::MemoryUse;
use stovepipe_benches::footprint::{
    picture::{Bar, BarPart},
    published::PublishedMemory,
    trial::MeasuredMemory,
};

/// The memory that only a step needs: kept inputs, activations, and what a running layer needs besides.
pub(crate) fn in_a_step(memory: MemoryUse) -> u64 {
    memory.inputs + memory.activations + memory.workspace
}

pub(crate) fn measured_bar(items: &MeasuredMemory) -> Bar {
    let known = items.parameters + items.optimizer + items.gradients + items.activations;
    let parts = [
        (BarPart::Parameters, items.parameters),
        (BarPart::Optimizer, items.optimizer),
        (BarPart::Gradients, items.gradients),
        (BarPart::Activations, items.activations),
        (BarPart::Other, items.peak.saturating_sub(known)),
    ];
    bar("measured", parts.map(|(part, bytes)| (part, bytes as f64)))
}

pub(crate) fn predicted_bar(memory: MemoryUse, separate: bool) -> Bar {
    let (parameters, optimizer) = (memory.parameters, memory.optimizer);
    let mut parts = if separate {
        vec![
            (BarPart::Parameters, parameters),
            (BarPart::Optimizer, optimizer),
        ]
    } else {
        vec![(BarPart::Model, parameters + optimizer)]
    };
    parts.push((BarPart::Gradients, memory.gradients));
    parts.push((BarPart::Activations, in_a_step(memory)));
    parts.push((BarPart::Other, memory.batch));
    let parts = parts.into_iter();
    bar("predicted", parts.map(|(part, bytes)| (part, bytes as f64)))
}

pub(crate) fn published_bar(label: &str, memory: PublishedMemory) -> Bar {
    let activations = (memory.activations).map(|bytes| (BarPart::Activations, bytes));
    let parts = [(BarPart::Model, memory.model)]
        .into_iter()
        .chain(activations);
    let failed = memory.activations.is_none();
    Bar {
        missing: failed.then_some("+ activations: out of memory"),
        ..bar(label, parts)
    }
}

fn bar(label: &str, parts: impl IntoIterator<Item = (BarPart, f64)>) -> Bar {
    Bar {
        label: label.to_owned(),
        parts: parts.into_iter().collect(),
        missing: None,
    }
}
