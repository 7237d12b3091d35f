//! Finds what draws random numbers that cannot be drawn again.

use burn::module::{Flag, Module, ModuleVisitor, Param};
use thiserror::Error;

use crate::model::layer::Layer;

/// Burn's modules that draw from the generator of the whole process, and what to use instead.
const UNKEYED: [(&str, &str); 3] = [
    ("Dropout", "`stovepipe::nn::Dropout`"),
    ("GaussianNoise", "`stovepipe::nn::GaussianNoise`"),
    ("RRelu", "`Context::draws`"),
];

/// A layer draws random numbers that cannot be drawn again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "layer {layer} ({name}) holds Burn's `{module}`, which draws other numbers when the layer is \
     recomputed, and others again when the model is cut elsewhere: use {replacement} instead, or \
     `allow_unkeyed(true)` if it changes nothing, as a dropout with probability 0"
)]
pub struct Unkeyed {
    /// The layer.
    pub layer: usize,
    /// Its name.
    pub name: String,
    /// Burn's module.
    pub module: &'static str,
    /// What draws the same numbers.
    pub replacement: &'static str,
}

/// Makes sure that no layer draws such numbers as it is now.
pub(crate) fn check<L: Layer>(layers: &[L]) -> Result<(), Unkeyed> {
    let mut found = layers.iter().map(find).enumerate();
    match found.find_map(|(layer, found)| Some((layer, found?))) {
        None => Ok(()),
        Some((layer, (module, replacement))) => Err(Unkeyed {
            layer,
            name: layers[layer].name(),
            module,
            replacement,
        }),
    }
}

/// The first module of Burn's that draws random numbers, and what to use instead. It is known by its
/// name and by the flag that says whether it trains, which `freeze` clears. How much it drops is not to
/// be seen.
fn find<M: Module>(module: &M) -> Option<(&'static str, &'static str)> {
    type Known = (&'static str, &'static str);

    #[derive(Default)]
    struct Find {
        /// What each of the fields around what is visited may be the flag of.
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
