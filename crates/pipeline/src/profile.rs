//! What each layer of a model costs, measured on a sample.

use std::time::{Duration, Instant};

use burn::{
    module::{ModuleMapper, Param},
    tensor::{Device, Tensor, TensorData},
};
use crossbeam_channel::bounded;

use crate::{
    engine::{
        copies, guard,
        tape::{self, Extent, Head, Origin, Recorded, Watch},
        values,
        worker::Worker,
    },
    error::{BuildError, ProfileError},
    layer::Layer,
    parameters::count_parameters,
};

/// Runs of a layer that are timed, at least and at most; between these, for as long as
/// [`ENOUGH`].
const RUNS: std::ops::RangeInclusive<usize> = 5..=25;
const ENOUGH: Duration = Duration::from_millis(100);

/// What each layer of a model costs for a sample; see [`Profile::measure`].
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The layers, in order.
    pub layers: Vec<LayerProfile>,
}

/// What a layer costs for a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerProfile {
    /// What the layer calls itself.
    pub name: String,
    /// Its forward pass, recorded: the median of several runs.
    pub forward: Duration,
    /// Its backward pass: the median of several runs.
    pub backward: Duration,
    /// The bytes of its parameters.
    pub parameters: usize,
    /// The bytes of what it hands to the next layer.
    pub activations: usize,
}

impl Profile {
    /// Measures each layer forward and backward on `sample`, for a model that reads nothing from the
    /// side. A sample of the size of a micro-batch tells most.
    ///
    /// `threads` is the number of CPU threads that kernels may use. The model is not touched: each
    /// layer is measured on a copy, one layer at a time, in which parameters that have no value yet
    /// get one for the time being.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, Miswired};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, Miswired> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, Miswired> { Ok(flow) }
    /// # }
    /// use stovepipe_pipeline::Profile;
    ///
    /// let device = Device::flex();
    /// let layers = [4, 8, 2].windows(2).map(|sizes| Dense {
    ///     linear: LinearConfig::new(sizes[0], sizes[1]).init(&device),
    /// }).collect::<Vec<_>>();
    /// let profile = Profile::measure(&layers, &device, 1, Tensor::ones([16, 4], &device))?;
    /// assert_eq!(profile.layers[0].parameters, 4 * (4 * 8 + 8));
    /// assert_eq!(profile.layers[0].activations, 4 * (16 * 8));
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the sample does not pass through a layer, forward and backward, or a thread cannot be
    /// started.
    pub fn measure<L: Layer<Side = ()>>(
        layers: &[L],
        device: &Device,
        threads: usize,
        sample: L::Input,
    ) -> Result<Self, BuildError> {
        Self::measure_with(layers, device, threads, sample, ())
    }

    /// Like [`measure`](Self::measure), with side inputs.
    ///
    /// # Errors
    ///
    /// Those of `measure`.
    pub fn measure_with<L: Layer>(
        layers: &[L],
        device: &Device,
        threads: usize,
        sample: L::Input,
        side: L::Side,
    ) -> Result<Self, BuildError> {
        if threads == 0 {
            return Err(BuildError::NoThreads);
        }
        // On a worker like those that will run the stages.
        let worker = Worker::spawn("profile", threads)
            .map_err(|source| BuildError::Worker { worker: 0, source })?;
        let (sender, result) = bounded(1);
        let (layers, device) = (layers.to_vec(), device.clone().inner());
        worker.run(move || {
            let given = guard::guarded("enter", || {
                let side = values::attach(values::to_device(side, &device), false);
                (values::to_device(L::enter(sample), &device), side)
            });
            let profile = (given.map_err(|error| ProfileError::new(&layers, 0, error.to_string())))
                .and_then(|(flow, side)| measure_all(&layers, flow, &side, &device));
            let _ = sender.send(profile);
        });
        let layers = result.recv().map_err(|_| BuildError::Unmeasured)??;
        Ok(Self { layers })
    }

    /// Forward and backward of each layer, in seconds.
    #[must_use]
    pub fn times(&self) -> Vec<f64> {
        let time = |layer: &LayerProfile| (layer.forward + layer.backward).as_secs_f64();
        self.layers.iter().map(time).collect()
    }

    /// The memory that each layer surely needs in training, in bytes: what it hands on, and four times
    /// its parameters (themselves, their gradients, and the two moments of Adam). What a layer keeps
    /// within itself for its backward pass is not known.
    #[must_use]
    pub fn sizes(&self) -> Vec<f64> {
        let size = |layer: &LayerProfile| (layer.activations + 4 * layer.parameters) as f64;
        self.layers.iter().map(size).collect()
    }
}

fn measure_all<L: Layer>(
    layers: &[L],
    mut flow: L::Flow,
    side: &L::Side,
    device: &Device,
) -> Result<Vec<LayerProfile>, ProfileError> {
    let mut profiles = Vec::with_capacity(layers.len());
    for (index, layer) in layers.iter().enumerate() {
        let origin = match index {
            0 => Origin::Data,
            _ => Origin::Stage,
        };
        let bench = Bench {
            layer: stand_in(layer, device),
            origin,
            side,
            device,
        };
        let measured = guard::guarded("layer", || bench.measure(&flow));
        let refused = |cause| ProfileError::new(layers, index, cause);
        let (forward, backward, output) = measured
            .map_err(|error| refused(error.to_string()))?
            .map_err(refused)?;
        profiles.push(LayerProfile {
            name: layer.name(),
            forward,
            backward,
            parameters: size_of::<f32>() * count_parameters(layer),
            activations: values::bytes(output.clone()),
        });
        flow = output;
    }
    Ok(profiles)
}

/// A copy of a layer to be measured.
struct Bench<'a, L: Layer> {
    layer: L,
    origin: Origin,
    side: &'a L::Side,
    device: &'a Device,
}

impl<L: Layer> Bench<'_, L> {
    /// The medians of forward and backward, and the output.
    fn measure(&self, input: &L::Flow) -> Result<(Duration, Duration, L::Flow), String> {
        self.run(input)?; // kernels are compiled
        let (_, _, output) = self.run(input)?; // and pages touched
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let began = Instant::now();
        while forward.len() < *RUNS.start()
            || (forward.len() < *RUNS.end() && began.elapsed() < ENOUGH)
        {
            let run = self.run(input)?;
            forward.push(run.0);
            backward.push(run.1);
        }
        Ok((median(forward), median(backward), output))
    }

    fn run(&self, input: &L::Flow) -> Result<(Duration, Duration, L::Flow), String> {
        let modules = vec![copies::with_fresh_leaves(&self.layer)];
        let device = self.device.clone().autodiff();
        let nothing = || Tensor::zeros([1], &device);
        let loss = |_: Head, output| values::sum(output).unwrap_or_else(nothing);
        self.finish()?;
        let began = Instant::now();
        let recorded = tape::record(
            modules,
            input.clone(),
            self.origin,
            self.side,
            &loss,
            &Unwatched,
        );
        let Recorded { output, tape, .. } = recorded.map_err(|tape::Refused(cause)| cause)?;
        self.finish()?;
        let forward = began.elapsed();
        let gradients = values::ones(output.clone());
        self.finish()?;
        let began = Instant::now();
        let _ = tape.backward(gradients, Extent::Whole, |_, _, _| (), &Unwatched);
        self.finish()?;
        Ok((forward, began.elapsed(), output))
    }

    /// Waits until the device has done what it was told.
    fn finish(&self) -> Result<(), String> {
        self.device.sync().map_err(|error| error.to_string())
    }
}

struct Unwatched;

impl Watch for Unwatched {
    fn enter(&self, _: usize) {}
    fn leave(&self) {}
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A copy of a layer on a device, ready to train, that shares nothing that could change: clones of
/// lazy parameters would initialise the model's, and clones of running statistics move with them.
fn stand_in<L: Layer>(layer: &L, device: &Device) -> L {
    struct Values<'a>(&'a Device);

    impl ModuleMapper for Values<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match param.is_initialized() {
                true => param,
                false => Param::from_tensor(plausible(param.lazy_shape().dims(), self.0)),
            }
        }
    }

    let copy = layer.clone().map(&mut Values(device));
    copy.valid().fork(device).train()
}

/// Weights of the usual size, without a draw from Burn's generator, which may be somebody's.
fn plausible<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = match D {
        0 | 1 => vec![1.0; count],
        _ => {
            let inputs = (count / shape[0].max(1)).max(1);
            let scale = (2.0 / inputs as f32).sqrt();
            (0..count).map(|i| scale * (1.3 * i as f32).sin()).collect()
        }
    };
    Tensor::from_data(TensorData::new(values, shape), device)
}
