//! Finds what draws random numbers that cannot be drawn again.

use burn::module::{Flag, Module, ModuleVisitor, Param};

/// Burn's modules that draw from the generator of the whole process, and what to use instead.
const UNKEYED: [(&str, &str); 3] = [
    ("Dropout", "`stovepipe::nn::Dropout`"),
    ("GaussianNoise", "`stovepipe::nn::GaussianNoise`"),
    ("RRelu", "`Context::draws`"),
];

/// The first module of Burn's that draws random numbers, and what to use instead. It is known by its
/// name and by the flag that says whether it trains, which `freeze` clears. How much it drops is not to
/// be seen.
pub(crate) fn find<M: Module>(module: &M) -> Option<(&'static str, &'static str)> {
    #[derive(Default)]
    struct Find {
        /// Containers and fields around what is visited.
        path: Vec<(String, String)>,
        found: Option<(&'static str, &'static str)>,
    }

    impl ModuleVisitor for Find {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.push((container.to_owned(), name.to_owned()));
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_flag(&mut self, flag: &Param<Flag>) {
            let Some((container, field)) = self.path.last() else {
                return;
            };
            if field == "training" && flag.is_enabled() {
                let mut known = UNKEYED.into_iter();
                let found = known.find(|(name, _)| container.strip_prefix("Struct:") == Some(name));
                self.found = self.found.or(found);
            }
        }
    }

    let mut find = Find::default();
    module.visit(&mut find);
    find.found
}
