//! Which tensor of a file goes where in a model.

use std::collections::{BTreeMap, BTreeSet};

use burn::store::burn_pack;

use super::{
    adapt::{adapted, is_linear_weight, name_in_pytorch},
    format::Convention,
    other_tensors::OtherTensors,
    places::Place,
};

/// A counter of PyTorch's batch norms.
pub(super) const COUNT: &str = ".num_batches_tracked";

/// A tensor that is not read yet, and its name in the file.
pub(super) struct Entry {
    pub(super) tensor: burn_pack::Tensor,
    pub(super) original: String,
}

/// The tensors of a file by their names in a pipeline.
pub(super) type Entries<'a> = BTreeMap<String, &'a Entry>;

pub(super) struct Fit {
    pub(super) tensors: Vec<burn_pack::Tensor>,
    pub(super) other: OtherTensors,
}

impl Fit {
    pub(super) fn new(entries: &Entries<'_>, places: &[Place], convention: Convention) -> Self {
        let mut taken = BTreeSet::new();
        let (mut tensors, mut other) = (Vec::new(), OtherTensors::default());
        for place in places {
            let Some((name, entry)) = find(entries, place, convention) else {
                other.missing.push(place.name.clone());
                continue;
            };
            taken.insert(name);
            let tensor = adapted(entry.tensor.clone(), place, convention);
            match misfit(&tensor, place) {
                None => tensors.push(tensor),
                Some(misfit) => {
                    let (name, original) = (&place.name, &entry.original);
                    let is_renamed = (name != original).then(|| format!(" (from {original})"));
                    let from = is_renamed.unwrap_or_default();
                    other.misshapen.push(format!("{name}{from} {misfit}"));
                }
            }
        }
        let is_extra = |name: &str| {
            let is_count = convention == Convention::PyTorch && name.ends_with(COUNT);
            !taken.contains(name) && !is_count
        };
        let extra = entries.iter().filter(|(name, _)| is_extra(name));
        other.extra = extra.map(|(_, entry)| entry.original.clone()).collect();
        Self { tensors, other }
    }
}

/// The convention of the file, if the names of norms' parameters or the shapes of linear layers show it.
pub(super) fn convention(entries: &Entries<'_>, places: &[Place]) -> Option<Convention> {
    places.iter().find_map(|place| shown_by(entries, place))
}

/// Whether both conventions read a file differently: without linear layers, they read the same.
pub(super) fn differs(entries: &Entries<'_>, places: &[Place]) -> bool {
    let is_linear = |place: &Place| is_linear_weight(place) && entries.contains_key(&place.name);
    places.iter().any(is_linear)
}

fn shown_by(entries: &Entries<'_>, place: &Place) -> Option<Convention> {
    let fits = |convention| {
        find(entries, place, convention).is_some_and(|(_, entry)| {
            adapted(entry.tensor.clone(), place, convention).shape == place.shape
        })
    };
    match (fits(Convention::Burn), fits(Convention::PyTorch)) {
        (true, false) => Some(Convention::Burn),
        (false, true) => Some(Convention::PyTorch),
        _ => None,
    }
}

/// The tensor for a place, and its name.
fn find<'a>(
    entries: &'a Entries<'_>,
    place: &Place,
    convention: Convention,
) -> Option<(&'a str, &'a Entry)> {
    let in_pytorch = match convention {
        Convention::PyTorch => name_in_pytorch(place),
        Convention::Burn => None,
    };
    let name = in_pytorch.as_ref().unwrap_or(&place.name);
    let (name, entry) = entries.get_key_value(name)?;
    Some((name, entry))
}

/// Why a tensor, in the model's layout, does not fit.
fn misfit(tensor: &burn_pack::Tensor, place: &Place) -> Option<String> {
    let (found, expected) = (tensor.shape.as_slice(), place.shape.as_slice());
    match place.float {
        _ if found != expected => Some(format!("is {found:?}, not {expected:?}")),
        Some(float) if !tensor.dtype.is_float() => Some(format!(
            "is {}, not {float:?}",
            tensor.dtype.name().to_uppercase()
        )),
        _ => None,
    }
}
