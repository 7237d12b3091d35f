//! A chain with fewer layers, for comparing shapes fast.

use crate::{LayerProfile, Profile};

/// Chains with more layers are shortened.
const MOST_LAYERS: usize = 512;

/// A profile in which cheap neighbours are joined.
pub(super) struct Coarse {
    pub profile: Profile,
    /// How many layers of the model each layer has.
    counts: Vec<usize>,
}

impl Coarse {
    pub fn new(profile: &Profile) -> Self {
        let layers = &profile.layers;
        let cost = |index: usize| layers[index].forward + layers[index].backward;
        let total: f64 = (0..layers.len()).map(cost).sum();
        let share = if layers.len() > MOST_LAYERS {
            total / MOST_LAYERS as f64
        } else {
            -1.0 // nothing is joined
        };
        let mut joined: Vec<LayerProfile> = Vec::new();
        let mut counts: Vec<usize> = Vec::new();
        let most = layers.len().div_ceil(MOST_LAYERS);
        for layer in layers {
            match (joined.last_mut(), counts.last_mut()) {
                (Some(last), Some(count))
                    if *count < 2 * most
                        && last.forward + last.backward + layer.forward + layer.backward
                            <= share =>
                {
                    *last = last.joined_with(layer);
                    *count += 1;
                }
                _ => {
                    joined.push(layer.clone());
                    counts.push(1);
                }
            }
        }
        Self {
            profile: Profile {
                layers: joined,
                ..*profile
            },
            counts,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.counts.iter().all(|&count| count == 1)
    }

    /// The same cut of the model.
    pub fn balance(&self, balance: &[usize]) -> Vec<usize> {
        let mut counts = self.counts.iter();
        let layers = |&count: &usize| counts.by_ref().take(count).sum();
        balance.iter().map(layers).collect()
    }
}
