//! Layers measured as they run in a pipeline.
//!
//! A layer that is repeated alone finds its weights, its input and its memory in the caches. In a pipeline, the
//! other layers of its stage run in between, the activations of several micro-batches are alive, and other
//! workers use the same caches, the same memory and the same power. So all layers are run one after the other,
//! for several micro-batches, by as many workers as there will be.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use burn::optim::GradientsAccumulator;
use crossbeam_channel::unbounded;
use stovepipe_plan::LayerProfile;

use crate::{
    api::error::{ProfilerError, StepError},
    engine::{
        panic::caught,
        skips::{SkipValues, StageSkips},
        tape::{BackwardScope, StageValues},
        worker,
    },
    measure::{
        layer_bench::{LayerBench, Setting, failed, pass_of},
        probe::median,
    },
    model::{layer::Layer, wiring::Wiring},
};

/// Micro-batches that are alive.
const MICRO_BATCHES: usize = 2;
/// Bytes that all workers together may hold. With more, the model is run in parts; and if layers are so
/// large, by fewer workers.
const LIMIT: u64 = 1 << 30;
/// How often a part is run: as many times as fit into [`TIME`]. The first run is not counted.
const ROUNDS: std::ops::RangeInclusive<usize> = 3..=12;
const TIME: Duration = Duration::from_secs(1);

/// Seconds of a layer forward and backward.
type Seconds = [f64; 2];

/// What is run.
pub(super) struct Chain<'a, L: Layer> {
    pub(super) layers: &'a [L],
    pub(super) wiring: &'a Arc<Wiring>,
    pub(super) flow: L::Flow,
    pub(super) side: &'a L::Side,
    pub(super) samples: usize,
}

impl<L: Layer> Chain<'_, L> {
    /// Replaces the times of layers that were measured alone by those of so many workers with so many threads,
    /// side by side. `alive` is called now and then.
    pub(super) fn replace_times(
        &self,
        setting: &Setting,
        (workers, threads_of_each): (usize, usize),
        profiles: &mut [LayerProfile],
        alive: &dyn Fn(),
    ) -> Result<(), ProfilerError> {
        let largest = profiles.iter().map(held).max().unwrap_or(0).max(1);
        let workers = workers.min((LIMIT / largest) as usize).max(1);
        let parts = parts(profiles, LIMIT / workers as u64);
        let (results, others) = unbounded();
        let mut threads = Vec::new();
        for number in 1..workers {
            let name = format!("profile-{number}");
            let thread = worker::spawn_alone(&name, threads_of_each);
            let thread = thread.map_err(failed(self.layers, 0))?;
            let (results, setting, parts) = (results.clone(), setting.clone(), parts.clone());
            let (layers, wiring) = (self.layers.to_vec(), self.wiring.clone());
            let (flow, side, samples) = (self.flow.clone(), self.side.clone(), self.samples);
            thread.run(move || {
                let chain = Chain {
                    layers: &layers,
                    wiring: &wiring,
                    flow,
                    side: &side,
                    samples,
                };
                let _ = results.send(caught(|| chain.run(&setting, &parts, &|| ())));
            });
            threads.push(thread);
        }
        let _ = results.send(caught(|| self.run(setting, &parts, alive)));
        drop(results);
        let mut sum = vec![[0.0; 2]; self.layers.len()];
        for found in others {
            let found = found.map_err(StepError::panicked("layer"));
            let found = found.map_err(failed(self.layers, 0))??;
            for (sum, found) in sum.iter_mut().zip(found) {
                *sum = [sum[0] + found[0], sum[1] + found[1]];
            }
        }
        for (profile, [forward, backward]) in profiles.iter_mut().zip(sum) {
            replace_times(profile, forward / workers as f64, backward / workers as f64);
        }
        Ok(())
    }
}

/// The bytes that a worker holds of a layer: a copy, its gradients, and activations, a few times as much as
/// its output if they were not counted.
fn held(layer: &LayerProfile) -> u64 {
    let kept = layer.kept.unwrap_or(8 * layer.output);
    2 * layer.parameters + MICRO_BATCHES as u64 * kept
}

/// Parts of a chain that hold at most so many bytes, and at least a layer.
fn parts(profiles: &[LayerProfile], most: u64) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, layer) in profiles.iter().enumerate() {
        let own = held(layer);
        match parts.last_mut() {
            Some(part) if bytes + own <= most => (part.end, bytes) = (index + 1, bytes + own),
            _ => {
                parts.push(index..index + 1);
                bytes = own;
            }
        }
    }
    parts
}

/// The parts of times that were measured alone keep their shares.
fn replace_times(profile: &mut LayerProfile, forward: f64, backward: f64) {
    let share = |now: f64, before: f64| if before > 0.0 { now / before } else { 1.0 };
    let slower = share(forward, profile.forward);
    profile.quiet = profile.quiet.map(|quiet| quiet * slower);
    let slower = share(backward, profile.backward);
    profile.weight = profile.weight.map(|weight| (weight * slower).min(backward));
    (profile.forward, profile.backward) = (forward, backward);
}

impl<L: Layer> Chain<'_, L> {
    fn run(
        &self,
        setting: &Setting,
        parts: &[Range<usize>],
        alive: &dyn Fn(),
    ) -> Result<Vec<Seconds>, ProfilerError> {
        let alone: Vec<_> = (0..self.layers.len())
            .map(|layer| layer..layer + 1)
            .collect();
        let alone = StageSkips::of_stages(self.wiring, &alone);
        let mut input = StageValues {
            flow: self.flow.clone(),
            skips: SkipValues::new(),
        };
        let mut seconds = Vec::with_capacity(self.layers.len());
        for part in parts {
            let skips = part.clone().map(|layer| &alone[layer]);
            let benches = part.clone().zip(skips).map(|(first, skips)| LayerBench {
                layer: setting.copy(&self.layers[first]),
                pass: pass_of(self.layers, first, (self.side, self.samples), skips),
                setting,
            });
            let benches: Vec<_> = benches.collect();
            let mut times = vec![[Vec::new(), Vec::new()]; benches.len()];
            let mut output = self.run_once(&benches, &input, &mut times)?; // touches memory
            times.iter_mut().flatten().for_each(Vec::clear);
            let began = Instant::now();
            for round in 1..*ROUNDS.end() {
                if round >= *ROUNDS.start() && began.elapsed() > TIME {
                    break;
                }
                alive();
                output = self.run_once(&benches, &input, &mut times)?;
            }
            seconds.extend(times.into_iter().map(|times| times.map(median)));
            input = output;
        }
        Ok(seconds)
    }

    /// Forward and backward passes of a few micro-batches. Returns the last output.
    fn run_once(
        &self,
        benches: &[LayerBench<'_, L>],
        input: &StageValues<L>,
        times: &mut [[Vec<Duration>; 2]],
    ) -> Result<StageValues<L>, ProfilerError> {
        let failed = |bench: usize| failed(self.layers, benches[bench].pass.first);
        let (mut tapes, mut values) = (Vec::new(), input.clone());
        for _ in 0..MICRO_BATCHES {
            values = input.clone();
            for (index, bench) in benches.iter().enumerate() {
                let (recorded, time) = bench.record(&values).map_err(failed(index))?;
                values.flow = recorded.output.flow.clone();
                values.skips.extend(recorded.output.skips.clone());
                times[index][0].push(time);
                tapes.push((index, recorded));
            }
        }
        let mut sums: Vec<_> = benches
            .iter()
            .map(|_| GradientsAccumulator::new())
            .collect();
        for (index, recorded) in tapes.into_iter().rev() {
            let run = benches[index].backward(recorded, BackwardScope::All, &mut sums[index]);
            times[index][1].push(run.map_err(failed(index))?.0);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_what_fits_and_a_layer_at_least() {
        let layer = |kept| LayerProfile {
            kept,
            output: 10,
            parameters: 5,
            ..LayerProfile::default()
        };
        let of = |kept: &[Option<u64>], most| {
            let profiles: Vec<_> = kept.iter().map(|&kept| layer(kept)).collect();
            parts(&profiles, most)
        };
        let some = |kept: &[u64]| kept.iter().map(|&kept| Some(kept)).collect::<Vec<_>>();
        // A layer holds 10 bytes of parameters and gradients, and two micro-batches of what it keeps.
        assert_eq!(of(&some(&[3, 3, 3, 3]), 32), [0..2, 2..4]);
        assert_eq!(of(&some(&[9, 1, 1, 9]), 24), [0..1, 1..3, 3..4]);
        assert_eq!(of(&[None, None, None], 340), [0..2, 2..3]); // eight times the output
        assert!(of(&[], 1).is_empty());
    }

    /// The parts of a layer's times stay within them.
    #[test]
    fn shares_of_times_stay() {
        let mut profile = LayerProfile {
            forward: 1.0,
            quiet: Some(0.5),
            backward: 2.0,
            weight: Some(0.5),
            ..LayerProfile::default()
        };
        replace_times(&mut profile, 2.0, 3.0);
        let expected = LayerProfile {
            forward: 2.0,
            quiet: Some(1.0),
            backward: 3.0,
            weight: Some(0.75),
            ..LayerProfile::default()
        };
        assert_eq!(profile, expected);
    }
}
