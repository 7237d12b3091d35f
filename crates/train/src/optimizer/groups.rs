//! Parameters with learning rates of their own.

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::{ParamGroup, ParamId},
    store::ModuleSnapshot,
};
use stovepipe_pipeline::{Layer, Pipeline};

use super::states::Names;
use crate::{error::TrainError, processes::Processes, settings::RateSetting};

/// Some parameters, and their learning rate as a share of their layer's. Of those that fit a parameter, the last holds.
#[derive(Clone, Default)]
pub(super) struct Groups(Vec<Group>);

#[derive(Clone)]
struct Group {
    fits: Arc<Fits>,
    share: f64,
}

/// Whether a parameter belongs to a group, by its number and its name.
type Fits = dyn Fn(&ParamId, &str) -> bool + Send + Sync;

/// The shares of parameters that do not have their layer's rate.
pub(super) type Shares = HashMap<ParamId, f64>;

impl Groups {
    pub(super) fn new(settings: &[RateSetting]) -> Self {
        let groups = settings.iter().cloned().map(|setting| Group {
            share: setting.share,
            fits: Arc::new(move |_, name| setting.names.matches(name)),
        });
        Self(groups.collect())
    }

    pub(super) fn add(&mut self, group: ParamGroup, share: f64) {
        let fits = move |id: &ParamId, name: &str| group.matches(id, Some(name));
        self.0.push(Group {
            fits: Arc::new(fits),
            share,
        });
    }

    pub(super) fn shares<L: Layer>(&self, pipeline: &Pipeline<L>) -> Shares {
        if self.0.is_empty() {
            return Shares::new();
        }
        let share = |(id, name): (ParamId, String)| {
            let group = self.0.iter().rfind(|group| (group.fits)(&id, &name))?;
            Some((id, group.share))
        };
        names(pipeline).into_iter().filter_map(share).collect()
    }
}

/// Checks that each setting is about a parameter of some process.
pub(super) fn check<L: Layer>(
    settings: &[RateSetting],
    pipeline: &Pipeline<L>,
) -> Result<(), TrainError> {
    if settings.is_empty() {
        return Ok(());
    }
    let own: Vec<_> = names(pipeline).into_values().collect();
    let mut all = Processes::of(pipeline).gather(own)?.concat();
    all.sort();
    let is_unused = |setting: &&RateSetting| !all.iter().any(|name| setting.names.matches(name));
    settings.iter().find(is_unused).map_or(Ok(()), |setting| {
        Err(TrainError::NoParameter {
            names: setting.names.to_string(),
            first: all.first().cloned().unwrap_or_default(),
            last: all.last().cloned().unwrap_or_default(),
        })
    })
}

/// The names of this process's parameters, as in the model's file. One in several layers has its first name.
pub(crate) fn names<L: Layer>(pipeline: &Pipeline<L>) -> Names {
    let mut names = Names::new();
    for tensor in pipeline.collect(None, None, true) {
        if let Some(id) = tensor.param_id {
            names.entry(id.into()).or_insert(tensor.name);
        }
    }
    names
}
