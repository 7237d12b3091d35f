//! Finds modules that draw random numbers which cannot be drawn again.

use std::fmt;

use burn::module::{Flag, Module, ModuleVisitor, Param};
use stovepipe_schedule::Recompute;
use thiserror::Error;

use crate::model::{layer::Layer, wiring::LayerName};

/// Burn's modules that draw from the generator of the whole process, and what to use instead.
const UNKEYED: [(&str, &str); 3] = [
    ("Dropout", "`stovepipe::nn::Dropout`"),
    ("GaussianNoise", "`stovepipe::nn::GaussianNoise`"),
    ("RRelu", "`Context::rng`"),
];

/// A layer that draws random numbers which cannot be drawn again. Its text is a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unkeyed {
    /// The layer.
    pub layer: LayerName,
    /// Burn's module.
    pub module: &'static str,
    /// What draws the same numbers again.
    pub replacement: &'static str,
}

impl fmt::Display for Unkeyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, replacement) = (self.place(), self.replacement);
        write!(
            f,
            "{layer}, which draws other numbers in each run: training does not give the same bits \
             again; {replacement} does"
        )
    }
}

impl Unkeyed {
    fn place(&self) -> String {
        format!("{} holds Burn's `{}`", self.layer, self.module)
    }
}

/// Why a layer that draws such numbers is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnkeyedError {
    /// The builder did not allow it.
    #[error(
        "{}, which draws other numbers when the layer is recomputed or the model is cut elsewhere: \
         use {} instead; or use `allow_unkeyed(true)` and recompute `never`, without the same bits; \
         or `unkeyed_draws_nothing(true)` if its probability is 0",
        .0.place(), .0.replacement
    )]
    NotAllowed(Unkeyed),
    /// It is allowed, but would be recomputed.
    #[error(
        "{}, and the recompute mode is `{recompute}`: a recomputed layer would draw other numbers \
         than its forward pass. Use recompute `never`, or {} instead",
        layer.place(), layer.replacement
    )]
    Recomputed {
        /// The layer.
        layer: Unkeyed,
        /// The recompute mode.
        recompute: Recompute,
    },
}

/// What to do about layers that draw such numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnkeyedPolicy {
    Refuse,
    /// Allow them if nothing is recomputed.
    Allow,
    /// The user says that they draw nothing.
    Ignore,
}

/// Finds the layers that draw such numbers as they are now.
pub(crate) fn check<L: Layer>(
    layers: &[L],
    policy: UnkeyedPolicy,
    recompute: &Recompute,
) -> Result<Vec<Unkeyed>, UnkeyedError> {
    if policy == UnkeyedPolicy::Ignore {
        return Ok(Vec::new());
    }
    let found = layers.iter().enumerate().filter_map(|(index, layer)| {
        let (module, replacement) = find(layer)?;
        let name = layer.name();
        Some(Unkeyed {
            layer: LayerName { index, name },
            module,
            replacement,
        })
    });
    let found: Vec<_> = found.collect();
    if let (Some(layer), UnkeyedPolicy::Refuse) = (found.first(), policy) {
        return Err(UnkeyedError::NotAllowed(layer.clone()));
    }
    let is_again = |layer: usize| !recompute.segments(layer..layer + 1).is_empty();
    match found.iter().find(|own| is_again(own.layer.index)) {
        Some(layer) => Err(UnkeyedError::Recomputed {
            layer: layer.clone(),
            recompute: recompute.clone(),
        }),
        None => Ok(found),
    }
}

/// The first module of Burn's that draws random numbers, and what to use instead. It is recognised by
/// its name and the flag that says whether it trains, which `freeze` clears. Its probability is not
/// visible.
fn find<M: Module>(module: &M) -> Option<(&'static str, &'static str)> {
    type Known = (&'static str, &'static str);

    #[derive(Default)]
    struct Find {
        /// For each enclosing field: the module whose flag it is, if any.
        around: Vec<Option<Known>>,
        found: Option<Known>,
    }

    impl ModuleVisitor for Find {
        fn enter_module(&mut self, name: &str, container: &str) {
            let container = container.strip_prefix("Struct:");
            let is_it = |(known, _): &Known| name == "training" && container == Some(known);
            self.around.push(UNKEYED.into_iter().find(is_it));
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.around.pop();
        }

        fn visit_flag(&mut self, flag: &Param<Flag>) {
            let known = self.around.last().copied().flatten();
            self.found = self.found.or(known.filter(|_| flag.is_enabled()));
        }
    }

    let mut find = Find::default();
    module.visit(&mut find);
    find.found
}
