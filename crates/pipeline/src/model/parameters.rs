//! Facts about a module's parameters that need none of them allocated.

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::Tensor,
};

/// The number of parameters that training changes, or would if they were not frozen.
///
/// Counted from shapes, so that lazy parameters stay lazy. Unlike Burn's `num_params` this leaves
/// out the running statistics of batch normalization, which are no parameters; the count equals
/// PyTorch's `sum(p.numel() for p in model.parameters())`.
///
/// ```
/// use burn::{nn::BatchNormConfig, tensor::Device};
/// use stovepipe_pipeline::count_parameters;
///
/// let norm = BatchNormConfig::new(8).init(&Device::flex());
/// assert_eq!(count_parameters(&norm), 16); // γ and β
/// ```
#[must_use]
pub fn count_parameters<M: Module>(module: &M) -> usize {
    #[derive(Default)]
    struct Counter(usize);

    impl ParameterVisitor for Counter {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += param.lazy_shape().num_elements();
        }
    }

    let mut counter = Counter::default();
    visit_parameters(module, &mut counter);
    counter.0
}

/// The ids of the float parameters, in the order of the module's fields.
pub(crate) fn parameter_ids<M: Module>(module: &M) -> Vec<ParamId> {
    struct Ids(Vec<ParamId>);

    impl ParameterVisitor for Ids {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id);
        }
    }

    let mut ids = Ids(Vec::new());
    visit_parameters(module, &mut ids);
    ids.0
}

/// Whether a module has a parameter that training changes.
pub(crate) fn is_trainable<M: Module>(module: &M) -> bool {
    struct Find(bool);

    impl ParameterVisitor for Find {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= param.is_require_grad();
        }
    }

    let has = |module: &M| {
        let mut find = Find(false);
        visit_parameters(module, &mut find);
        find.0
    };
    // A module that was made ready for evaluation shows no gradients until it trains again.
    has(module) || has(&module.valid().train())
}

/// Sees each float parameter, but no running statistics.
pub(crate) trait ParameterVisitor {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>);
}

pub(crate) fn visit_parameters<M: Module>(module: &M, visitor: &mut impl ParameterVisitor) {
    struct SkipStatistics<'a, V> {
        visitor: &'a mut V,
        in_statistics: bool,
    }

    // Burn visits running statistics as float parameters. They are told from parameters by the
    // field that holds them: a record of Burn's batch norm has no other mark.
    fn is_statistic(field: &str, container: &str) -> bool {
        container == "Struct:BatchNorm" && field.starts_with("running_")
    }

    impl<V: ParameterVisitor> ModuleVisitor for SkipStatistics<'_, V> {
        fn enter_module(&mut self, name: &str, container_type: &str) {
            self.in_statistics |= is_statistic(name, container_type);
        }

        fn exit_module(&mut self, name: &str, container_type: &str) {
            self.in_statistics &= !is_statistic(name, container_type);
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.in_statistics {
                self.visitor.parameter(param);
            }
        }
    }

    module.visit(&mut SkipStatistics {
        visitor,
        in_statistics: false,
    });
}
