//! The costs of each layer of a chain.

use std::{iter, ops::Range};

use serde::{Deserialize, Serialize};
use stovepipe_schedule::count;
use thiserror::Error;

use crate::toml_text::{self, TomlError, TomlText};

/// The costs of each layer of a chain, for a micro-batch of `samples` samples.
///
/// The file format is TOML:
///
/// ```
/// use stovepipe_plan::Profile;
///
/// let profile = Profile::from_toml(
///     r#"
///     samples = 8
///     input = 6144          # bytes, for 8 samples
///
///     [[layer]]
///     name = "classifier"
///     forward = 0.03        # seconds
///     forward-fixed = 0.01  # the part that does not grow with the samples; optional
///     backward = 0.0625
///     weight = 0.03125      # the part of backward that computes weight gradients; optional
///     parameters = 655400   # bytes
///     output = 320
///     kept = 131072         # held from forward to backward; optional
///     cast = 327700         # copies of parameters, in mixed precision; optional
///     bookkeeping = 4096    # a copy of the layer, without its tensors; optional
///     context = 262144      # held between the halves of the backward pass; optional
///     workspace = 786432    # what a pass needs besides; optional
///
///     [[layer]]
///     name = "scores"
///     forward = 0.01
///     backward = 0.02
///     parameters = 0
///     output = 320
///
///     [[skip]]              # a value that skips layers; optional
///     from = 0              # the layer that sends it, from 0
///     to = [1]              # the layers that take it
///     bytes = 320
///     "#,
/// )?;
/// assert_eq!(profile.layers[0].weight, Some(0.03125));
/// assert_eq!(profile.skips[0].to, [1]);
/// assert_eq!(Profile::from_toml(&profile.to_toml())?, profile);
/// # Ok::<(), stovepipe_plan::ProfileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// Samples of the micro-batch that was measured.
    pub samples: usize,
    /// Bytes of the model's input for these samples.
    pub input: u64,
    /// The layers, in the order of the chain.
    #[serde(rename = "layer", default)]
    pub layers: Vec<LayerProfile>,
    /// Values that layers send past others: `[[skip]]` in a file. Without them, the planner takes the model to have none.
    #[serde(rename = "skip", default, skip_serializing_if = "Vec::is_empty")]
    pub skips: Vec<SkipProfile>,
}

/// A value that a layer sends past others, for the samples of its [`Profile`]. Layers count from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SkipProfile {
    /// The layer that sends it.
    pub from: usize,
    /// The layers that take it: at least one, ascending.
    pub to: Vec<usize>,
    /// Its bytes.
    pub bytes: u64,
}

/// The costs of a layer for the samples of its [`Profile`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LayerProfile {
    /// The layer's name in outputs.
    pub name: String,
    /// Seconds of a forward pass that keeps its activations.
    pub forward: f64,
    /// Seconds of a forward pass that keeps nothing and will be recomputed. None: as `forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<f64>,
    /// Seconds of both halves of the backward pass, without recomputation.
    pub backward: f64,
    /// Seconds of `backward` that compute weight gradients. None: unknown, counted as half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Seconds of `forward` that do not grow with the samples.
    #[serde(default)]
    pub forward_fixed: f64,
    /// Seconds of `backward` that do not grow with the samples.
    #[serde(default)]
    pub backward_fixed: f64,
    /// Bytes of the parameters.
    pub parameters: u64,
    /// Bytes of the parameters that are trained. None: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<u64>,
    /// Bytes of the copies of parameters, of another type, that a step in mixed precision computes on. None: it
    /// computes on the parameters themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cast: Option<u64>,
    /// Bytes of the output.
    pub output: u64,
    /// Bytes of activations kept within the layer from forward to backward. None: unknown, counted as the
    /// output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
    /// Bytes of a copy of the layer besides its tensors. None: unknown, counted as none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookkeeping: Option<u64>,
    /// Bytes held between the halves of a backward pass, with the layer's input if that is among them. None: unknown,
    /// counted as `kept`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    /// The most bytes that a pass of the layer needs besides `kept`: the gradients of its output and of its parameters,
    /// values on the way to others, and buffers of kernels; on a GPU, of the pages of its pool. None: unknown, counted
    /// as the gradients of its parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<u64>,
}

/// A skip whose takers are missing, out of order, or no later layers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a skip goes from a layer to later ones, in order: not from {from} to {to:?} in a model of {}",
    count(*layers, "layer")
)]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct SkipError {
    pub from: usize,
    pub to: Vec<usize>,
    pub layers: usize,
}

/// Why a text is not a profile. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ProfileError {
    /// The text is not TOML of this form.
    #[error(transparent)]
    Toml(#[from] TomlError),
    /// The profile has no layer.
    #[error("line {line}: a profile needs at least one [[layer]]")]
    NoLayers { line: usize },
    /// The profile is for no samples.
    #[error("line {line}: samples = 0, but a profile is for at least one sample")]
    NoSamples { line: usize },
    /// A time is negative, infinite or NaN.
    #[error("line {line}: {key} = {value} in layer {layer:?} is not a finite number of at least 0")]
    Time {
        line: usize,
        layer: String,
        key: &'static str,
        value: f64,
    },
    /// A part of a time is longer than the whole.
    #[error("line {line}: {key} = {part} in layer {layer:?} is more than {whole_key} = {whole}")]
    PartAboveWhole {
        line: usize,
        layer: String,
        key: &'static str,
        part: f64,
        whole_key: &'static str,
        whole: f64,
    },
    /// A skip does not go from a layer to later ones.
    #[error("line {line}: {source}")]
    Skip { line: usize, source: SkipError },
    /// The layers up to this one have more seconds or bytes than a number can hold.
    #[error("line {line}: with layer {layer:?} the {what} of the layers are too many to add up")]
    TooLarge {
        line: usize,
        layer: String,
        what: &'static str,
    },
}

impl Profile {
    /// Reads a profile; see [`Profile`] for the format. `quiet`, `weight`, `cast`, `kept`,
    /// `bookkeeping`, `context` and `workspace` are optional, and so are `forward-fixed` and `backward-fixed`, with the default 0.
    ///
    /// # Errors
    ///
    /// The line, if the text is not TOML, a key is missing, unknown or of the wrong kind, a number is
    /// negative, infinite or NaN, a part (`weight`, `forward-fixed`, `backward-fixed`) is more than its
    /// whole, a skip does not go to later layers, times or bytes are too large to be added up, or there are no
    /// layers or no samples.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let text = TomlText(text);
        let profile: Self = text.parse()?;
        if profile.samples == 0 {
            let line = text.line_of("samples");
            return Err(ProfileError::NoSamples { line });
        }
        if profile.layers.is_empty() {
            let line = text.last_line();
            return Err(ProfileError::NoLayers { line });
        }
        for (index, skip) in profile.skips.iter().enumerate() {
            let line = |source| ProfileError::Skip {
                line: text.line_in("skip", index, "to"),
                source,
            };
            skip.check(profile.layers.len()).map_err(line)?;
        }
        // If these do not overflow, neither do the sums of planners.
        let skips = profile.skips.iter().map(|skip| skip.bytes);
        let skips = skips.fold(0, u64::saturating_add);
        let (mut seconds, mut bytes) = (0.0, profile.input.checked_add(skips));
        for (index, layer) in profile.layers.iter().enumerate() {
            let line = |key: &str| text.line_in("layer", index, key);
            layer.check(line)?;
            seconds += layer.forward + layer.quiet.unwrap_or(0.0) + layer.backward;
            let besides = [
                layer.cast,
                layer.kept,
                layer.bookkeeping,
                layer.context,
                layer.workspace,
            ];
            let besides = besides.map(Option::unwrap_or_default);
            for more in [layer.parameters, layer.output].into_iter().chain(besides) {
                bytes = bytes.and_then(|bytes| bytes.checked_add(more));
            }
            let overflows = [
                ("seconds", !seconds.is_finite()),
                ("bytes", bytes.is_none()),
            ];
            if let Some((what, _)) = overflows.into_iter().find(|(_, overflows)| *overflows) {
                let (line, layer) = (line(""), layer.name.clone());
                return Err(ProfileError::TooLarge { line, layer, what });
            }
        }
        Ok(profile)
    }

    /// The profile as TOML. [`Profile::from_toml`] reads the same profile, to the last bit.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml_text::write(self)
    }

    /// Estimates the part of each time that does not grow with the samples, from a profile of the same
    /// layers with fewer samples: the line through both times, at zero samples.
    ///
    /// ```
    /// use stovepipe_plan::{LayerProfile, Profile};
    ///
    /// let profile = |samples, forward| Profile {
    ///     samples,
    ///     input: 0,
    ///     layers: vec![LayerProfile { forward, ..LayerProfile::default() }],
    ///     skips: vec![],
    /// };
    /// let both = profile(8, 5.0).with_fixed_parts(&profile(2, 2.0));
    /// assert_eq!(both.layers[0].forward_fixed, 1.0); // 1 + 0.5 a sample
    /// ```
    #[must_use]
    pub fn with_fixed_parts(mut self, smaller: &Self) -> Self {
        let (many, few) = (self.samples as f64, smaller.samples as f64);
        let fixed = |large: f64, small: f64| {
            if many <= few {
                return 0.0;
            }
            (small - few * (large - small) / (many - few)).clamp(0.0, small.min(large))
        };
        for (layer, smaller) in self.layers.iter_mut().zip(&smaller.layers) {
            layer.forward_fixed = fixed(layer.forward, smaller.forward);
            layer.backward_fixed = fixed(layer.backward, smaller.backward);
        }
        self
    }

    /// Estimates the profile for another number of samples. Bytes of activations grow with the samples
    /// (rounded up), parameters do not. The fixed part of a time stays, the rest grows. `quiet` and `weight`
    /// keep their share of `forward` and `backward`.
    ///
    /// ```
    /// use stovepipe_plan::{LayerProfile, Profile};
    ///
    /// let mut layer = LayerProfile { forward: 3.0, forward_fixed: 1.0, ..LayerProfile::default() };
    /// (layer.parameters, layer.output) = (40, 8);
    /// let profile = Profile { samples: 2, input: 16, layers: vec![layer], skips: vec![] };
    /// assert_eq!((profile.times(), profile.sizes()), (vec![3.0], vec![168.0]));
    /// let larger = profile.for_samples(6);
    /// assert_eq!(larger.layers[0].forward, 7.0); // 1 + 3 × 2
    /// assert_eq!((larger.layers[0].parameters, larger.layers[0].output), (40, 24));
    /// ```
    #[must_use]
    pub fn for_samples(&self, samples: usize) -> Self {
        let old = self.samples.max(1);
        let bytes = |bytes: u64| {
            let scaled = (u128::from(bytes) * samples as u128).div_ceil(old as u128);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let ratio = samples as f64 / old as f64;
        let layers = self.layers.iter().map(|layer| LayerProfile {
            output: bytes(layer.output),
            kept: layer.kept.map(bytes),
            context: layer.context.map(bytes),
            // The gradients of parameters do not grow.
            workspace: layer.workspace.map(|all| {
                let gradients = layer.trained_or_all().min(all);
                gradients.saturating_add(bytes(all - gradients))
            }),
            ..layer.scaled(ratio)
        });
        let skips = self.skips.iter().map(|skip| SkipProfile {
            bytes: bytes(skip.bytes),
            ..skip.clone()
        });
        Self {
            samples,
            input: bytes(self.input),
            layers: layers.collect(),
            skips: skips.collect(),
        }
    }

    /// Bytes of the skips that some layers send and others take, a skip that several of these take once.
    pub(crate) fn skipping(&self, from: Range<usize>, to: Range<usize>) -> u64 {
        let is_one = |skip: &&SkipProfile| {
            from.contains(&skip.from) && skip.to.iter().any(|taker| to.contains(taker))
        };
        let bytes = self.skips.iter().filter(is_one).map(|skip| skip.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether a layer can compute the gradients of its weights later, or that is unknown.
    ///
    /// ```
    /// use stovepipe_plan::{LayerProfile, Profile};
    ///
    /// let layer = |weight| LayerProfile { weight, ..LayerProfile::default() };
    /// let with = |weight| Profile { samples: 1, input: 0, layers: vec![layer(weight)], skips: vec![] };
    /// assert!(with(None).has_halves() && with(Some(0.5)).has_halves());
    /// assert!(!with(Some(0.0)).has_halves());
    /// ```
    #[must_use]
    pub fn has_halves(&self) -> bool {
        self.layers.iter().any(|layer| layer.weight != Some(0.0))
    }

    /// Seconds of each layer, forward and backward.
    #[must_use]
    pub fn times(&self) -> Vec<f64> {
        let time = |layer: &LayerProfile| layer.forward + layer.backward;
        self.layers.iter().map(time).collect()
    }

    /// Bytes of each layer in training: what it keeps from forward to backward, and four times its
    /// parameters (values, gradients, and the two moments of Adam).
    #[must_use]
    pub fn sizes(&self) -> Vec<f64> {
        let size =
            |layer: &LayerProfile| layer.kept_or_output() as f64 + 4.0 * layer.parameters as f64;
        self.layers.iter().map(size).collect()
    }
}

impl SkipProfile {
    /// Checks that it goes to later layers, of so many.
    pub(crate) fn check(&self, layers: usize) -> Result<(), SkipError> {
        let places: Vec<_> = iter::once(self.from)
            .chain(self.to.iter().copied())
            .collect();
        let is_in_order = places.is_sorted_by(|one, next| one < next);
        if is_in_order && places.len() > 1 && places.iter().all(|&layer| layer < layers) {
            return Ok(());
        }
        Err(SkipError {
            from: self.from,
            to: self.to.clone(),
            layers,
        })
    }
}

impl LayerProfile {
    /// Checks that times are finite and parts are not above their whole. `line` takes a key.
    fn check(&self, line: impl Fn(&str) -> usize) -> Result<(), ProfileError> {
        for (key, time) in [
            ("forward", Some(self.forward)),
            ("quiet", self.quiet),
            ("backward", Some(self.backward)),
            ("weight", self.weight),
            ("forward-fixed", Some(self.forward_fixed)),
            ("backward-fixed", Some(self.backward_fixed)),
        ] {
            if let Some(value) = time.filter(|&time| !(time >= 0.0 && time.is_finite())) {
                return Err(ProfileError::Time {
                    line: line(key),
                    layer: self.name.clone(),
                    key,
                    value,
                });
            }
        }
        let (forward, backward) = (("forward", self.forward), ("backward", self.backward));
        for (key, part, (whole_key, whole)) in [
            ("weight", self.weight.unwrap_or(0.0), backward),
            ("forward-fixed", self.forward_fixed, forward),
            ("backward-fixed", self.backward_fixed, backward),
        ] {
            if part > whole {
                return Err(ProfileError::PartAboveWhole {
                    line: line(key),
                    layer: self.name.clone(),
                    key,
                    part,
                    whole_key,
                    whole,
                });
            }
        }
        Ok(())
    }

    /// The same layer with scaled times.
    fn scaled(&self, ratio: f64) -> Self {
        let forward = self.forward_fixed + (self.forward - self.forward_fixed) * ratio;
        let backward = self.backward_fixed + (self.backward - self.backward_fixed) * ratio;
        let share = |part: f64, whole: f64, scaled: f64| {
            if whole > 0.0 {
                scaled * (part / whole)
            } else {
                part * ratio
            }
        };
        let quiet = (self.quiet).map(|quiet| share(quiet, self.forward, forward));
        let weight = (self.weight).map(|weight| share(weight, self.backward, backward));
        Self {
            forward,
            quiet,
            backward,
            weight,
            ..self.clone()
        }
    }

    /// Seconds of a forward pass that keeps nothing.
    pub(crate) fn quiet_or_forward(&self) -> f64 {
        self.quiet.unwrap_or(self.forward)
    }

    /// Seconds of `backward` that compute weight gradients, by default half.
    pub(crate) fn weight_or_half(&self) -> f64 {
        self.weight.unwrap_or(self.backward / 2.0)
    }

    /// Bytes kept from forward to backward, by default the output.
    pub(crate) fn kept_or_output(&self) -> u64 {
        self.kept.unwrap_or(self.output)
    }

    /// Bytes held between the halves of a backward pass.
    pub(crate) fn context_or_kept(&self) -> u64 {
        self.context.unwrap_or_else(|| self.kept_or_output())
    }

    /// The most bytes that a pass needs besides, by default the gradients of the parameters.
    pub(crate) fn workspace_or_gradients(&self) -> u64 {
        self.workspace.unwrap_or_else(|| self.trained_or_all())
    }

    /// Bytes of the parameters that are trained.
    pub(crate) fn trained_or_all(&self) -> u64 {
        self.trained.unwrap_or(self.parameters)
    }

    /// This layer and the next as one.
    pub(crate) fn joined_with(&self, next: &Self) -> Self {
        let known = |part: fn(&Self) -> Option<u64>| {
            let [own, next] = [part(self), part(next)];
            let sum = own
                .unwrap_or_default()
                .saturating_add(next.unwrap_or_default());
            own.or(next).map(|_| sum)
        };
        Self {
            name: self.name.clone(),
            forward: self.forward + next.forward,
            quiet: Some(self.quiet_or_forward() + next.quiet_or_forward()),
            backward: self.backward + next.backward,
            weight: Some(self.weight_or_half() + next.weight_or_half()),
            forward_fixed: self.forward_fixed + next.forward_fixed,
            backward_fixed: self.backward_fixed + next.backward_fixed,
            parameters: self.parameters.saturating_add(next.parameters),
            trained: (self.trained.or(next.trained))
                .map(|_| self.trained_or_all().saturating_add(next.trained_or_all())),
            cast: known(|layer| layer.cast),
            output: next.output,
            kept: Some(self.kept_or_output().saturating_add(next.kept_or_output())),
            bookkeeping: known(|layer| layer.bookkeeping),
            context: (self.context.or(next.context)).map(|_| {
                self.context_or_kept()
                    .saturating_add(next.context_or_kept())
            }),
            // While one of them runs, the later one has kept nothing yet, or no more.
            workspace: Some({
                let own = self.workspace_or_gradients();
                own.saturating_sub(next.kept_or_output())
                    .max(next.workspace_or_gradients())
            }),
        }
    }
}
