//! A short training of a model on some devices.

use std::time::{Duration, Instant};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, FloatDType, Int, Tensor},
};
use stovepipe::{
    pipeline::{CrossEntropy, NamedDevice, Pipeline},
    train::{TrainSettings, optimizer::StagedOptimizer},
};

use crate::{
    data::{Contents, data_sets},
    error::{CliError, usage},
    models::{self, Classifier, ModelWork, Sizes},
};

/// Its labels and the size of its images. The images are [`waves`].
const DATA: &str = "digits";
/// Steps of a small model, all on the same images. Few: each amplifies the last one's rounding errors.
const STEPS: usize = 3;
/// Images of a step of a small model, and of one of the usual size.
const SMALL: usize = 8;
const LARGE: usize = 64;
const RATE: f64 = 1e-3;
/// How long steps of a model of the usual size are repeated, after those that warm up.
const MEASURED: Duration = Duration::from_secs(5);
const WARM_UP: usize = 3;

pub struct Trial {
    family: String,
    devices: Vec<NamedDevice>,
    samples: usize,
    is_small: bool,
    /// Whether the first weights are rounded to 11 significant bits.
    is_rounded: bool,
    /// How long a pass may take.
    limit: Duration,
}

/// What a training has shown.
pub struct Tried {
    /// Of the first step.
    pub gradients: Vec<f64>,
    pub losses: Vec<f64>,
    pub seconds: f64,
    pub samples_per_second: f64,
}

impl Trial {
    /// A small model, one stage on each device.
    pub fn small(family: &str, devices: &[&NamedDevice], limit: Duration) -> Self {
        Self {
            family: family.to_owned(),
            devices: devices.iter().copied().cloned().collect(),
            samples: SMALL,
            is_small: true,
            is_rounded: false,
            limit,
        }
    }

    /// The same from rounded weights: how far apart two trainings may be if the factors of each product are.
    pub fn rounded(mut self) -> Self {
        self.is_rounded = true;
        self
    }

    /// A model of the usual size on one device.
    pub fn large(family: &str, device: &NamedDevice, limit: Duration) -> Self {
        Self {
            samples: LARGE,
            is_small: false,
            ..Self::small(family, &[device], limit)
        }
    }

    pub fn run(self) -> Result<Tried, CliError> {
        let data = data_sets().find(DATA);
        let choices = match self.is_small {
            true => models::to_compare(),
            false => models::trained(),
        };
        let (Some(data), Some(mut model)) = (data, choices.find(&self.family)) else {
            return Err(usage!("{DATA} and {} are no names", self.family));
        };
        let Contents::Images(images) = data.contents() else {
            return Err(CliError::NotOfImages);
        };
        model.settle(images.image_size());
        let sizes = Sizes::of_images(images.image_size(), images.usual_classes());
        let (images, labels) = images.first(self.samples)?;
        let batch = (waves(images.dims()), labels);
        model.build(&sizes, Training { trial: self, batch })
    }
}

struct Training {
    trial: Trial,
    batch: (Tensor<4>, Tensor<1, Int>),
}

impl ModelWork for Training {
    type Done = Tried;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<Tried, CliError> {
        let trial = &self.trial;
        let mut pipeline = Pipeline::builder(layers)
            .devices(trial.devices.clone())
            .micro_batches(2)
            .stall_timeout(Some(trial.limit.max(Duration::from_secs(1))))
            .build()?;
        if trial.is_rounded {
            pipeline = pipeline.map(&mut Rounding);
        }
        let mut optimizer = StagedOptimizer::new(&TrainSettings::default(), trial.devices.len());
        let mut tried = Tried {
            gradients: Vec::new(),
            losses: Vec::new(),
            seconds: 0.0,
            samples_per_second: 0.0,
        };
        let began = Instant::now();
        let mut measured = None;
        loop {
            let batch = (self.batch.0.clone(), self.batch.1.clone());
            let step = pipeline.train_step(batch, &CrossEntropy::new())?;
            tried.losses.push(step.loss);
            if tried.gradients.is_empty() && trial.is_small {
                tried.gradients = numbers(&pipeline, &step.gradients);
            }
            optimizer.step(RATE, &mut pipeline, step.gradients, began)?;
            let steps = tried.losses.len();
            if steps == WARM_UP && !trial.is_small {
                measured = Some(Instant::now());
            }
            let since = measured.map_or(Duration::ZERO, |measured| measured.elapsed());
            let is_over = match trial.is_small {
                true => steps == STEPS,
                false => since >= MEASURED || began.elapsed() >= trial.limit,
            };
            if is_over {
                let counted = steps.saturating_sub(WARM_UP) * trial.samples;
                tried.samples_per_second = counted as f64 / since.as_secs_f64().max(1e-9);
                tried.seconds = began.elapsed().as_secs_f64();
                return Ok(tried);
            }
        }
    }
}

/// To f16 and back: it has 11 significant bits, as TF32.
struct Rounding;

impl ModuleMapper for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let dtype = FloatDType::from(value.dtype());
            let is_tracked = value.is_autodiff();
            let inner = if is_tracked { value.inner() } else { value };
            let rounded = inner.cast(FloatDType::F16).cast(dtype);
            match is_tracked {
                true => rounded.autodiff().require_grad(),
                false => rounded,
            }
        })
    }
}

/// Images without an even area, such as the digits' background: there, norms divide by almost nothing, and the last
/// digits of a device's sums decide what comes out.
fn waves(shape: [usize; 4]) -> Tensor<4> {
    let numbers = 0..shape.iter().product::<usize>() as i64;
    let numbers = Tensor::<1, Int>::arange(numbers, &Device::flex()).float();
    let (short, long) = (numbers.clone().mul_scalar(1.7), numbers.mul_scalar(0.037));
    (short.sin() + long.sin()).reshape(shape)
}

/// All gradients, layer by layer.
fn numbers<L: Classifier>(pipeline: &Pipeline<L>, gradients: &GradientsParams) -> Vec<f64> {
    struct Numbers<'a> {
        gradients: &'a GradientsParams,
        found: Vec<f64>,
    }

    impl ModuleVisitor for Numbers<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.get::<D>(param.id) {
                self.found.extend(gradient.into_data().iter::<f64>());
            }
        }
    }

    let found = Vec::new();
    let mut numbers = Numbers { gradients, found };
    pipeline
        .layers()
        .iter()
        .for_each(|layer| layer.visit(&mut numbers));
    numbers.found
}

/// Sends numbers to a device and back.
pub fn round_trip(device: &Device) -> Result<(), CliError> {
    let sent: Vec<f32> = (0..1 << 20).map(|index| (index as f32).sin()).collect();
    let there = Tensor::<1>::from_floats(sent.as_slice(), &Device::flex()).to_device(device);
    let data = there.try_into_data();
    let data = data.map_err(|error| usage!("a copy failed: {error:?}"))?;
    let back: Vec<f32> = data.iter().collect();
    match back == sent {
        true => Ok(()),
        false => Err(usage!(
            "the values that come back are not those that were sent"
        )),
    }
}
