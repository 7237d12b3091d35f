//! Facts about a module's parameters, without allocating them.

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};

use crate::model::moved::moved;

/// The number of parameters, with frozen ones.
///
/// Counts shapes, so lazy parameters stay lazy. Unlike Burn's `num_params`, this does not count the running
/// statistics of batch norms: it equals PyTorch's `sum(p.numel() for p in model.parameters())`.
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

/// Bytes of a module's parameters, and of those that are trained. Lazy parameters stay lazy: they count as
/// trained, and as f32.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, tensor::Device};
/// use stovepipe_pipeline::parameter_bytes;
///
/// let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// assert_eq!(parameter_bytes(&linear), [32, 32]);
/// let _ = (linear.weight.val(), linear.bias.as_ref().map(|bias| bias.val())); // now they have values
/// assert_eq!(parameter_bytes(&linear.no_grad()), [32, 0]);
/// ```
#[must_use]
pub fn parameter_bytes<M: Module>(module: &M) -> [u64; 2] {
    struct Bytes([u64; 2]);

    impl ParameterVisitor for Bytes {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let (mut each, mut trained) = (size_of::<f32>(), true);
            if param.is_initialized() {
                each = param.val().dtype().size();
                // Without autodiff, a tensor does not know.
                trained =
                    param.is_require_grad() || param.clone().valid().train().is_require_grad();
            }
            let bytes = (param.lazy_shape().num_elements() * each) as u64;
            self.0[0] += bytes;
            self.0[1] += bytes * u64::from(trained);
        }
    }

    let mut bytes = Bytes([0; 2]);
    visit_parameters(module, &mut bytes);
    bytes.0
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
    // After `valid`, a module has no trainable parameters until `train`.
    has(module) || has(&module.valid().train())
}

/// Moves the gradients of a module's parameters. Adds those of a parameter that is already there, because
/// modules share it.
pub(crate) fn move_gradients<M: Module>(
    module: &M,
    from: &mut GradientsParams,
    to: &mut GradientsParams,
) {
    move_gradients_of(module, |_| true, from, to);
}

/// The same for some parameters.
pub(crate) fn move_gradients_of<M: Module>(
    module: &M,
    is_moved: impl Fn(ParamId) -> bool,
    from: &mut GradientsParams,
    to: &mut GradientsParams,
) {
    struct Move<'a, P> {
        is_moved: P,
        from: &'a mut GradientsParams,
        to: &'a mut GradientsParams,
    }

    impl<P: Fn(ParamId) -> bool> ParameterVisitor for Move<'_, P> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !(self.is_moved)(param.id) {
                return;
            }
            if let Some(gradient) = self.from.remove::<D>(param.id) {
                let gradient = match self.to.remove::<D>(param.id) {
                    Some(sum) => {
                        let device = sum.device();
                        sum + moved(gradient, &device)
                    }
                    None => gradient,
                };
                self.to.register(param.id, gradient);
            }
        }
    }

    visit_parameters(module, &mut Move { is_moved, from, to });
}

/// Whether a field has running statistics. Burn visits them as float parameters; only this name differs.
pub(crate) fn is_statistic(field: &str, container: &str) -> bool {
    container == "Struct:BatchNorm" && field.starts_with("running_")
}

/// Visits each float parameter, but no running statistics.
pub(crate) trait ParameterVisitor {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>);
}

pub(crate) fn visit_parameters<M: Module>(module: &M, visitor: &mut impl ParameterVisitor) {
    struct SkipStatistics<'a, V> {
        visitor: &'a mut V,
        in_statistics: bool,
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
