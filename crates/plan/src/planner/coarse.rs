//! A chain with fewer layers, for comparing shapes fast.

use std::iter;

use stovepipe_schedule::{Recompute, Segments};

use crate::{LayerProfile, Profile, SkipProfile};

/// Chains with more layers are shortened.
const MOST_LAYERS: usize = 512;

/// A profile in which cheap neighbours are joined.
pub(super) struct Coarse {
    pub profile: Profile,
    /// How many layers of the model each layer has.
    counts: Vec<usize>,
}

impl Coarse {
    /// The same profile if none of its layers may be joined.
    pub fn new(profile: &Profile, may_join: bool) -> Self {
        let layers = &profile.layers;
        let cost = |index: usize| layers[index].forward + layers[index].backward;
        let total: f64 = (0..layers.len()).map(cost).sum();
        let share = if may_join && layers.len() > MOST_LAYERS {
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
        let places = counts.iter().enumerate();
        let places = places.flat_map(|(place, &count)| iter::repeat_n(place, count));
        let places: Vec<usize> = places.collect();
        let skips = profile.skips.iter().filter_map(|skip| {
            let from = places[skip.from];
            let mut to: Vec<_> = skip.to.iter().map(|&taker| places[taker]).collect();
            to.dedup();
            to.retain(|&taker| taker > from);
            let bytes = skip.bytes;
            (!to.is_empty()).then_some(SkipProfile { from, to, bytes })
        });
        Self {
            profile: Profile {
                layers: joined,
                skips: skips.collect(),
                ..*profile
            },
            counts,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.counts.iter().all(|&count| count == 1)
    }

    /// The same layers of the model are recomputed.
    pub fn recompute(&self, recompute: &Recompute) -> Recompute {
        let Recompute::Segments(segments) = recompute else {
            return recompute.clone();
        };
        let first = |layer: usize| self.counts[..layer].iter().sum::<usize>();
        let runs = segments
            .runs()
            .iter()
            .map(|run| first(run.start)..first(run.end));
        Segments::new(runs).map_or(Recompute::Always, Recompute::Segments)
    }

    /// The same cut of the model.
    pub fn balance(&self, balance: &[usize]) -> Vec<usize> {
        let mut counts = self.counts.iter();
        let layers = |&count: &usize| counts.by_ref().take(count).sum();
        balance.iter().map(layers).collect()
    }
}
