//! The first tensor in which two files differ.

use std::{fs, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use stovepipe::schedule::count;

use crate::error::CliError;

/// Says in which tensor two files of weights first differ, in the order of layers, if they do.
pub fn first_other_tensor(files: [&Path; 2]) -> Result<Option<String>, CliError> {
    let read = |path: &Path| fs::read(path).map_err(CliError::file(path));
    let bytes = [read(files[0])?, read(files[1])?];
    if bytes[0] == bytes[1] {
        return Ok(None);
    }
    let open = |which: usize| {
        SafeTensors::deserialize(&bytes[which]).map_err(CliError::file(files[which]))
    };
    let [first, second] = [open(0)?, open(1)?];
    let mut names = first.names();
    names.extend(second.names());
    names.sort_by_key(|name| in_order(name));
    names.dedup();
    let other = names.into_iter().find_map(|name| {
        let said = match (first.tensor(name), second.tensor(name)) {
            (Ok(first), Ok(second)) => difference(&first, &second)?,
            (Ok(_), Err(_)) => "only the first run has it".to_owned(),
            _ => "only the second run has it".to_owned(),
        };
        Some(format!("{name}: {said}"))
    });
    Ok(other)
}

/// Numbers in names are compared as numbers.
fn in_order(name: &str) -> Vec<(u64, &str)> {
    let parts = name.split('.');
    parts
        .map(|part| part.parse().map_or((u64::MAX, part), |number| (number, "")))
        .collect()
}

fn difference(first: &TensorView<'_>, second: &TensorView<'_>) -> Option<String> {
    let kind = |tensor: &TensorView<'_>| format!("{:?} {:?}", tensor.dtype(), tensor.shape());
    if first.dtype() != second.dtype() || first.shape() != second.shape() {
        return Some(format!("{} and {}", kind(first), kind(second)));
    }
    if first.data() == second.data() {
        return None;
    }
    let size = (first.dtype().bitsize() / 8).max(1);
    let all = first.data().len() / size;
    let pairs = (first.data().chunks(size)).zip(second.data().chunks(size));
    let mut differ = (pairs.enumerate()).filter(|(_, (first, second))| first != second);
    let (index, (one, other)) = differ.next()?;
    let others = count(1 + differ.count(), "number");
    let mut text = format!("{others} of {all}, the first at {index}");
    if first.dtype() == Dtype::F32 {
        let number = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        text += &format!(": {} and {}", number(one), number(other));
    }
    Some(text)
}
