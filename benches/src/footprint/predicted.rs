//! Predictions of the memory model.
//!
//! The model adds up what layers keep, which has to be measured. What a layer keeps is linear in the
//! width of the network and in the number of images, and layers at the same place in their group keep
//! the same. So measurements of narrow, shallow networks with a few images are enough for all sizes.

use burn::tensor::{Device, Tensor};
use stovepipe::{
    pipeline::{Profiler, count_parameters},
    plan::{BUCKET, LayerProfile, MemoryUse, Profile, Setup, cut_chain},
    schedule::WeightPolicy,
};

use super::case::{FootprintCase, ImageBatch, Network};
use crate::{Failure, piped::cpus};

/// The measured widths: bottlenecks of the stem are a sixteenth of them.
const FILTERS: [usize; 2] = [32, 64];
/// The measured numbers of images: one, as in a pipeline's micro-batches, and two for a line.
const SAMPLES: [usize; 3] = [1, 2, 4];
/// The measured normal cells, three in each group: the first follows a reduction, the second the
/// first, and all others are like the third.
const LAYERS: usize = 9;

/// Predicts the memory of networks of any size, and of any number of images of one size.
pub struct Predictor {
    side: usize,
    layers: usize,
    /// By width, then by images.
    profiles: [[Profile; 3]; 2],
}

#[derive(Clone, Debug)]
pub struct Prediction {
    /// The layers of each stage.
    pub cut: Vec<usize>,
    /// The memory of each device.
    pub devices: Vec<MemoryUse>,
}

impl Prediction {
    /// The memory of all devices together.
    pub fn sum(&self) -> MemoryUse {
        let devices = self.devices.iter().copied();
        devices.fold(MemoryUse::default(), |sum, device| sum + device)
    }

    /// The memory of the device that needs most.
    pub fn fullest(&self) -> u64 {
        let totals = self.devices.iter().map(|device| device.total());
        totals.max().unwrap_or_default()
    }
}

impl Predictor {
    /// Measures layers on a device, for networks of at least `layers` normal cells. The profiler counts
    /// the bytes that are allocated there.
    pub fn measure(
        side: usize,
        layers: usize,
        device: &Device,
        profiler: &Profiler,
    ) -> Result<Self, Failure> {
        let layers = layers.min(LAYERS);
        let profile = |filters, samples| {
            let network = Network { layers, filters };
            let sample = Tensor::ones([samples, 3, side, side], device);
            Ok::<_, Failure>(profiler.measure(&network.init(device)?, sample)?)
        };
        let of_width = |filters| {
            let [one, few, more] = SAMPLES.map(|samples| profile(filters, samples));
            Ok::<_, Failure>([one?, few?, more?])
        };
        let profiles = [of_width(FILTERS[0])?, of_width(FILTERS[1])?];
        Ok(Self {
            side,
            layers,
            profiles,
        })
    }

    /// The memory of a case. It is cut so that the stages' parameters, gradients, optimizer states and
    /// activations of a micro-batch are as equal as possible.
    pub fn predict(&self, case: &FootprintCase) -> Result<Prediction, Failure> {
        let profile = self.profile(case.network, case.images, case.micro_batch())?;
        let devices = case.strategy.devices();
        let cut = cut_chain(&profile.sizes(), devices)?;
        let setup = Setup {
            profiles: std::slice::from_ref(&profile),
            machine: &cpus(devices),
            devices: &(0..devices).collect::<Vec<_>>(),
            schedule: &case.schedule()?,
            recompute: &case.strategy.recompute(),
            weights: WeightPolicy::default(),
            state: case.settings().optimizer_state(),
            bucket: BUCKET,
        };
        let devices = setup.forecast(&cut)?.memory;
        Ok(Prediction { cut, devices })
    }

    /// The profile of a network: its own parameters, and everything else from measured profiles.
    fn profile(
        &self,
        network: Network,
        images: ImageBatch,
        samples: usize,
    ) -> Result<Profile, Failure> {
        if images.side != self.side || network.layers < self.layers {
            return Err(format!("{network} at {}² was not measured", images.side).into());
        }
        let layers = network.init(&Device::flex())?;
        let layers = layers.iter().enumerate().map(|(index, layer)| {
            let like = self.like(index, network.layers);
            let bytes = |part: fn(&LayerProfile) -> u64| {
                let measured = (self.profiles.each_ref())
                    .map(|row| row.each_ref().map(|profile| part(&profile.layers[like])));
                extrapolated(measured, network.filters, samples)
            };
            let parameters = (size_of::<f32>() * count_parameters(layer)) as u64;
            // Apart from the gradients of parameters, which are known.
            let workspace = bytes(|layer| {
                let all = layer.workspace.unwrap_or_default();
                all.saturating_sub(layer.parameters)
            });
            LayerProfile {
                parameters,
                workspace: Some(workspace + parameters),
                output: bytes(|layer| layer.output),
                kept: Some(bytes(|layer| layer.kept.unwrap_or(layer.output))),
                // Any times: the order of passes depends on the schedule alone.
                forward: 1.0,
                backward: 2.0,
                ..self.profiles[0][0].layers[like].clone()
            }
        });
        Ok(Profile {
            samples,
            layers: layers.collect(),
            input: self.profiles[0][0].input / SAMPLES[0] as u64 * samples as u64,
            skips: vec![],
        })
    }

    /// The measured layer that corresponds to a layer of a network with `of` normal cells.
    fn like(&self, layer: usize, of: usize) -> usize {
        const STEM: usize = 3;
        let (group, measured) = (of / 3 + 1, self.layers / 3 + 1); // with the reduction cell after it
        match layer.checked_sub(STEM) {
            None => layer,
            // The last group ends in the classifier.
            Some(place) => {
                let (before, place) = (place / group, place % group);
                let is_reduction = place + 1 == group;
                let last = measured - 1;
                let place = if is_reduction {
                    last
                } else {
                    place.min(last - 1)
                };
                STEM + before * measured + place
            }
        }
    }
}

/// Extrapolates measured values, which are linear in both width and images.
fn extrapolated(measured: [[u64; 3]; 2], filters: usize, samples: usize) -> u64 {
    let line = |[low, high]: [f64; 2], [start, end]: [usize; 2], x: usize| {
        low + (high - low) * (x as f64 - start as f64) / (end as f64 - start as f64)
    };
    let [_, few, more] = SAMPLES;
    let of_width = measured.map(|row| {
        let [one_image, low, high] = row.map(|bytes| bytes as f64);
        match samples {
            1 => one_image,
            _ => line([low, high], [few, more], samples),
        }
    });
    line(of_width, FILTERS, filters).max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;

    use super::*;

    /// The bytes of outputs and the parameters are known without a counter.
    #[test]
    fn a_network_is_predicted_from_a_smaller_one() {
        let device = Device::flex();
        let predictor = Predictor::measure(32, 12, &device, &Profiler::new(&device)).unwrap();
        let (layers, filters) = (12, 48);
        let network = Network { layers, filters };
        let images = ImageBatch { side: 32, count: 3 };
        let predicted = predictor.profile(network, images, 3).unwrap();
        let sample = Tensor::ones([3, 3, 32, 32], &device);
        let measured = Profiler::new(&device).measure(&network.init(&device).unwrap(), sample);
        let measured = measured.unwrap();
        assert_eq!(predicted.input, measured.input);
        let known = |profile: &Profile| {
            let layers = profile.layers.iter();
            let known = layers.map(|layer| (layer.name.clone(), layer.output, layer.parameters));
            known.collect::<Vec<_>>()
        };
        assert_eq!(known(&predicted), known(&measured));
    }

    #[test]
    fn images_of_another_size_are_not_predicted() {
        let device = Device::flex();
        let predictor = Predictor::measure(32, 3, &device, &Profiler::new(&device)).unwrap();
        let (layers, filters) = (3, 16);
        let network = Network { layers, filters };
        let images = ImageBatch { side: 64, count: 1 };
        assert!(predictor.profile(network, images, 1).is_err());
    }
}
