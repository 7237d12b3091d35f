//! The type of numbers that stages compute in, and the scale of the loss that f16 needs.

use std::{fmt, str::FromStr};

use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{engine::guard, measure::device::NamedDevice};

/// The type of numbers that a pipeline computes in.
///
/// In [`Bf16`](Self::Bf16) and [`F16`](Self::F16), training is of mixed precision (Micikevicius et al., "Mixed Precision
/// Training", 2018): the layers of the pipeline, and so optimizers, averages and files, keep parameters as they are, in
/// f32. A step computes on copies of the other type. What comes into the model is cast to it, and so is all
/// that passes between layers and stages; the objective sees outputs in f32, gradients are added up over
/// micro-batches in f32, and so are running statistics over mini-batches.
///
/// A layer that makes tensors of its own gives them the type of what it is given: `zeros.cast(x.dtype())`.
///
/// ```
/// use stovepipe_pipeline::Precision;
///
/// let precision: Precision = "bf16".parse()?;
/// assert_eq!(precision, Precision::Bf16);
/// assert!(precision.check(&"cpu".parse()?).is_ok());
/// assert_eq!("tf32".parse::<Precision>().unwrap_err(), "`tf32` is no precision: write f32, bf16 or f16");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// In the type that parameters and inputs have: f32.
    #[default]
    F32,
    /// In bf16: the range of f32 with 8 bits of precision.
    Bf16,
    /// In f16: 11 bits of precision and a range so small that the loss is [scaled](LossScaler).
    F16,
}

impl Precision {
    /// What parameters and inputs are cast to, if they are.
    pub(crate) fn cast(self) -> Option<FloatDType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }

    fn is_computed_by(self, device: &Device) -> bool {
        let asked = || self.cast().is_none_or(|dtype| device.supports_dtype(dtype));
        // A device that is not there panics in Burn.
        guard::guarded("device", asked).unwrap_or(false)
    }

    /// Makes sure that a device can compute so.
    ///
    /// # Errors
    ///
    /// If it cannot; the error names devices of this machine that can.
    pub fn check(self, device: &NamedDevice) -> Result<(), PrecisionError> {
        match self.is_computed_by(&device.device) {
            true => Ok(()),
            false => Err(PrecisionError {
                precision: self,
                device: device.name.clone(),
                others: self.devices(),
            }),
        }
    }

    /// The names of this machine's devices that can compute so.
    fn devices(self) -> Vec<String> {
        let offered = NamedDevice::offered().into_iter();
        let able = offered.filter(|offered| self.is_computed_by(&offered.device));
        able.map(|device| device.name).collect()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::F32, Self::Bf16, Self::F16];
        let named = all.into_iter().find(|named| named.to_string() == text);
        named.ok_or_else(|| format!("`{text}` is no precision: write f32, bf16 or f16"))
    }
}

/// A device cannot compute in a type of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "device `{device}` cannot compute in {precision}: use f32 (`--precision f32`){}",
    or_device(others)
)]
pub struct PrecisionError {
    /// The type of numbers.
    pub precision: Precision,
    /// The device.
    pub device: String,
    /// Devices of this machine that can.
    pub others: Vec<String>,
}

fn or_device(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(", or a device that can: {}", others.join(", ")),
    }
}

/// The scale of the loss in f16, whose gradients would else be too small to be told from zero: the loss is multiplied by
/// it before the backward pass, and gradients are divided by it after.
///
/// It finds itself, as PyTorch's `torch.amp.GradScaler` does: it begins with 65536, is halved by a step whose gradients
/// are not finite, and is doubled by the 2000th step in a row whose gradients are. A pipeline in f16 has one of its
/// own, and [leaves gradients out](crate::Step::overflowed) that are not finite. They are an error only if they come
/// about with a scale less than 1, too.
///
/// ```
/// use stovepipe_pipeline::LossScaler;
///
/// let mut scaler = LossScaler::default();
/// scaler.update(true);
/// assert_eq!(scaler.scale(), 32768.0);
/// (0..2000).for_each(|_| scaler.update(false));
/// assert_eq!(scaler.scale(), 65536.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LossScaler {
    scale: f32,
    /// Steps in a row whose gradients were finite, since the scale last changed.
    good_steps: u32,
}

impl Default for LossScaler {
    fn default() -> Self {
        Self {
            scale: 65536.0,
            good_steps: 0,
        }
    }
}

impl LossScaler {
    /// Good steps after which the scale grows.
    const PATIENCE: u32 = 2000;

    /// What the loss is multiplied by: a power of two, so that scaling and unscaling round nothing.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale.into()
    }

    /// Counts a step, and whether its gradients were not finite.
    pub fn update(&mut self, overflowed: bool) {
        self.good_steps = match overflowed {
            true => 0,
            false => self.good_steps + 1,
        };
        if overflowed {
            self.scale *= 0.5;
        } else if self.good_steps >= Self::PATIENCE {
            self.good_steps = 0;
            let doubled = 2.0 * self.scale;
            self.scale = if doubled.is_finite() {
                doubled
            } else {
                self.scale
            };
        }
    }

    /// Whether a smaller scale could still help.
    pub(crate) fn is_above_floor(&self) -> bool {
        self.scale >= 1.0
    }
}
