//! The type that stages compute in, and the scale of the loss in f16.

use std::{fmt, str::FromStr};

use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{engine::panic::caught, measure::device::NamedDevice};

/// The type that a pipeline computes in.
///
/// [`Bf16`](Self::Bf16) and [`F16`](Self::F16) are mixed precision (Micikevicius et al., "Mixed Precision
/// Training", 2018). Layers keep their parameters in f32, for optimizers and files. A step computes on
/// copies. The objective gets outputs in f32. Gradients and running statistics are added up in f32. A layer
/// that makes tensors casts them to the type of its input: `zeros.cast(x.dtype())`.
///
/// ```
/// use stovepipe_pipeline::Precision;
///
/// let precision: Precision = "bf16".parse()?;
/// assert_eq!(precision, Precision::Bf16);
/// assert!(precision.check(&"cpu".parse()?).is_ok());
/// let error = "tf32".parse::<Precision>().unwrap_err();
/// assert_eq!(error.to_string(), "unknown precision `tf32`: use f32, bf16 or f16");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32, the type of parameters and inputs.
    #[default]
    F32,
    /// bf16: the range of f32 with 8 bits of precision.
    Bf16,
    /// f16: 11 bits of precision and a small range, so the loss is [scaled](LossScaler).
    F16,
}

impl Precision {
    /// The type that parameters and inputs are cast to.
    pub(crate) fn cast(self) -> Option<FloatDType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }

    fn is_supported_by(self, device: &Device) -> bool {
        let asked = || self.cast().is_none_or(|dtype| device.supports_dtype(dtype));
        // A missing device panics in Burn.
        caught(asked).unwrap_or(false)
    }

    /// Checks that a device supports the type.
    ///
    /// # Errors
    ///
    /// If it does not; the error names devices of this machine that do.
    pub fn check(self, device: &NamedDevice) -> Result<(), PrecisionError> {
        if self.is_supported_by(&device.device) {
            return Ok(());
        }
        let mut others = NamedDevice::offered();
        others.retain(|offered| self.is_supported_by(&offered.device));
        Err(PrecisionError {
            precision: self,
            device: device.name.clone(),
            others: others.into_iter().map(|device| device.name).collect(),
        })
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
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Self, UnknownPrecision> {
        match text.to_lowercase().as_str() {
            "f32" | "fp32" | "float32" | "float" | "single" => Ok(Self::F32),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "f16" | "fp16" | "float16" | "half" => Ok(Self::F16),
            _ => Err(UnknownPrecision(text.to_owned())),
        }
    }
}

/// A text is not the name of a [`Precision`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown precision `{0}`: use f32, bf16 or f16")]
pub struct UnknownPrecision(pub String);

/// A device does not support a precision.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "device `{device}` cannot compute in {precision}: use f32 (`--precision f32`){}",
    or_device(others)
)]
pub struct PrecisionError {
    /// The precision.
    pub precision: Precision,
    /// The device.
    pub device: String,
    /// Devices of this machine that support it.
    pub others: Vec<String>,
}

fn or_device(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(", or a device that can: {}", others.join(", ")),
    }
}

/// The scale of the loss in f16: losses are multiplied by it before the backward pass, and gradients divided
/// by it, so that small gradients do not become zero.
///
/// It adapts like PyTorch's `torch.amp.GradScaler`: it starts at 65536, halves after a step whose gradients
/// are not finite, and doubles after 2000 finite steps in a row. A pipeline in f16 has its own scaler and
/// [skips](crate::Step::overflowed) such steps. They are an error only if the scale is below 1.
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
    /// Finite steps in a row since the scale changed.
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
    /// Finite steps in a row after which the scale doubles.
    const GROWTH_INTERVAL: u32 = 2000;

    /// The factor of the loss: a power of two, so scaling is exact.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale.into()
    }

    /// Counts a step; `overflowed` says that its gradients were not finite.
    pub fn update(&mut self, overflowed: bool) {
        if overflowed {
            self.good_steps = 0;
            self.scale *= 0.5;
            return;
        }
        self.good_steps += 1;
        if self.good_steps >= Self::GROWTH_INTERVAL {
            self.good_steps = 0;
            let doubled = Some(2.0 * self.scale);
            self.scale = doubled
                .filter(|scale| scale.is_finite())
                .unwrap_or(self.scale);
        }
    }

    /// Whether a smaller scale may help.
    pub(crate) fn is_above_floor(&self) -> bool {
        self.scale >= 1.0
    }
}
