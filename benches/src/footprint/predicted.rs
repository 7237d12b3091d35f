//! What the memory model says of a case.
//!
//! The model adds up what layers keep, and a layer is measured to know. But one need not have the network to measure
//! its layers: what a layer keeps is linear in the width of the network and in the number of images, and layers that
//! stand alike in their group keep the same. So narrow, shallow networks with a few images say it for all.

use burn::tensor::{Device, Tensor};
use stovepipe::{
    pipeline::{Profiler, count_parameters},
    plan::{LayerProfile, Machine, MemoryUse, Profile, Setup, cut_chain},
};

use super::case::{Case, Images, Network};
use crate::Failure;

/// Widths that are measured: bottlenecks of the stem are a sixteenth of them.
const FILTERS: [usize; 2] = [32, 64];
/// Images that are measured: one, as a pipeline's micro-batches have, and two numbers of them that a line goes through.
const SAMPLES: [usize; 3] = [1, 2, 4];
/// Normal cells that are measured, three in each group: the first follows a reduction, the second one cell
/// after it, and all the others are like the third.
const LAYERS: usize = 9;

/// What layers keep, for networks of any size and any number of images of one size.
pub struct Predictor {
    side: usize,
    layers: usize,
    /// By width, then by images.
    profiles: [[Profile; 3]; 2],
}

/// What a case will keep.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The layers of each stage.
    pub cut: Vec<usize>,
    /// What each device keeps.
    pub devices: Vec<MemoryUse>,
}

impl Prediction {
    /// What all devices keep together.
    #[must_use]
    pub fn sum(&self) -> MemoryUse {
        let devices = self.devices.iter().copied();
        devices.fold(MemoryUse::default(), |sum, device| sum + device)
    }

    /// What the device keeps that keeps most.
    #[must_use]
    pub fn fullest(&self) -> u64 {
        let totals = self.devices.iter().map(|device| device.total());
        totals.max().unwrap_or_default()
    }
}

impl Predictor {
    /// Measures layers on a device, for networks of so many normal cells or more. `allocated` says how many bytes
    /// are allocated there.
    ///
    /// # Errors
    ///
    /// If there is no such network, or images are too small for it.
    pub fn measure(
        side: usize,
        layers: usize,
        device: &Device,
        allocated: fn() -> usize,
    ) -> Result<Self, Failure> {
        let layers = layers.min(LAYERS);
        let profile = |filters, samples| {
            let network = Network { layers, filters };
            let sample = Tensor::ones([samples, 3, side, side], device);
            let profiler = Profiler::new(device).counting(allocated);
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

    /// What a case keeps, cut so that the stages' parameters, gradients, states and activations of a micro-batch are as equal as
    /// they can be.
    ///
    /// # Errors
    ///
    /// If there is no such network, or it has fewer layers than there are devices.
    pub fn predict(&self, case: &Case) -> Result<Prediction, Failure> {
        let profile = self.profile(case.network, case.images, case.micro_batch())?;
        let devices = case.way.devices();
        let cut = cut_chain(&profile.sizes(), devices)?;
        let setup = Setup {
            profiles: std::slice::from_ref(&profile),
            machine: &Machine::uniform(devices),
            devices: &(0..devices).collect::<Vec<_>>(),
            schedule: &case.schedule()?,
            recompute: case.way.recompute(),
            state: case.settings().optimizer_state(),
        };
        let devices = setup.forecast(&cut)?.memory;
        Ok(Prediction { cut, devices })
    }

    /// The profile of a network: parameters as they are, all else from those that were measured.
    fn profile(
        &self,
        network: Network,
        images: Images,
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
            LayerProfile {
                parameters: (size_of::<f32>() * count_parameters(layer)) as u64,
                output: bytes(|layer| layer.output),
                kept: Some(bytes(|layer| layer.kept.unwrap_or(layer.output))),
                // Any times will do: who does what in which order depends on the schedule alone.
                forward: 1.0,
                backward: 2.0,
                ..self.profiles[0][0].layers[like].clone()
            }
        });
        Ok(Profile {
            samples,
            layers: layers.collect(),
            input: self.profiles[0][0].input / SAMPLES[0] as u64 * samples as u64,
        })
    }

    /// The layer that was measured for one of a network with so many normal cells.
    fn like(&self, layer: usize, of: usize) -> usize {
        const STEM: usize = 3;
        let (group, measured) = (of / 3 + 1, self.layers / 3 + 1); // with the reduction cell after it
        match layer.checked_sub(STEM) {
            None => layer,
            // The last group ends in the classifier.
            Some(place) => {
                let (before, place) = (place / group, place % group);
                let place = match place + 1 == group {
                    true => measured - 1,
                    false => place.min(measured - 2),
                };
                STEM + before * measured + place
            }
        }
    }
}

/// What is linear in both width and images, from the values that were measured.
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

    /// Bytes handed on are known without a counter, and each parameter is known.
    #[test]
    fn a_network_is_predicted_from_a_smaller_one() {
        let device = Device::flex();
        let sight = Predictor::measure(32, 12, &device, || 0).unwrap();
        let network = Network {
            layers: 12,
            filters: 48,
        };
        let images = Images { side: 32, count: 3 };
        let predicted = sight.profile(network, images, 3).unwrap();
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
    fn what_was_not_measured_is_not_predicted() {
        let sight = Predictor::measure(32, 3, &Device::flex(), || 0).unwrap();
        let network = Network {
            layers: 3,
            filters: 16,
        };
        let images = Images { side: 64, count: 1 };
        assert!(sight.profile(network, images, 1).is_err());
    }
}
