//! The copies of a layer that a step works on, so that the model stays as it was until the step
//! has succeeded.
//!
//! Burn keeps running statistics in cells that clones of a module share, and writes them during
//! forward. Three copies follow from that:
//!
//! * `live` is made once a step. It has its own cells: forward passes update them, and
//!   [`statistics`](super::statistics) reads them.
//! * `quiet` shares `live`'s cells but tracks no gradients: it runs forward without a tape.
//! * tapes are recorded on copies with leaves of their own: micro-batches whose tapes met in the
//!   same leaves would be one graph to Burn, and each backward pass would walk all of it. Those for
//!   forward passes share `live`'s cells; those for recomputation have cells that nobody reads, so
//!   that each micro-batch counts once. A backward pass gives them back, for the next tape.
//!
//! In mixed precision, copies have numbers of another type than the model: they are cast once a step,
//! and the gradients that they leave are cast back.

use burn::{
    module::{Module, ModuleMapper, Param},
    optim::GradientsParams,
    tensor::{FloatDType, Tensor},
};

use crate::model::{
    parameters::{ParameterVisitor, visit_parameters},
    ties::share_leaves,
};

/// The copies of a stage's layers.
pub(crate) struct Copies<L> {
    live: Vec<L>,
    /// Made when it is first needed.
    quiet: Vec<L>,
    /// What may be recorded on, by [`Kind`].
    counted: Vec<Vec<L>>,
    uncounted: Vec<Vec<L>>,
}

/// Whether what is recorded on a copy counts in running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counted,
    Uncounted,
}

impl<L: Module> Copies<L> {
    pub(crate) fn to_train(layers: &[L], dtype: Option<FloatDType>) -> Self {
        let copy = |layer: &L| share_leaves(cast(layer.valid().train(), dtype));
        let live: Vec<_> = layers.iter().map(copy).collect();
        Self {
            counted: vec![live.clone()],
            uncounted: Vec::new(),
            quiet: Vec::new(),
            live,
        }
    }

    pub(crate) fn to_infer(layers: &[L], dtype: Option<FloatDType>) -> Self {
        let copy = |layer: &L| cast(layer.valid(), dtype);
        Self {
            live: Vec::new(),
            quiet: layers.iter().map(copy).collect(),
            counted: Vec::new(),
            uncounted: Vec::new(),
        }
    }

    /// Copies to run forward without a tape.
    pub(crate) fn quiet(&mut self) -> &[L] {
        if self.quiet.is_empty() {
            self.quiet = self.live.iter().map(quiet).collect();
        }
        &self.quiet
    }

    /// Copies to record a tape on.
    pub(crate) fn take(&mut self, kind: Kind) -> Vec<L> {
        let (free, copy) = match kind {
            Kind::Counted => (&mut self.counted, with_fresh_leaves as fn(&L) -> L),
            Kind::Uncounted => (&mut self.uncounted, live as fn(&L) -> L),
        };
        (free.pop()).unwrap_or_else(|| self.live.iter().map(copy).collect())
    }

    /// Takes copies back whose tape is no more.
    pub(crate) fn give_back(&mut self, kind: Kind, copies: Vec<L>) {
        match kind {
            Kind::Counted => self.counted.push(copies),
            Kind::Uncounted => self.uncounted.push(copies),
        }
    }

    /// The copies that know which parameters there are, and their statistics.
    pub(crate) fn live(&self) -> &[L] {
        &self.live
    }
}

/// A copy with statistics and leaves of its own, ready to train.
pub(crate) fn live<L: Module>(layer: &L) -> L {
    share_leaves(layer.valid().train())
}

/// The same statistics, but no gradients.
pub(crate) fn quiet<L: Module>(live: &L) -> L {
    live.clone().no_grad()
}

/// The same with floats of another type, statistics among them, if there is one. The module shares its
/// statistics with no other.
pub(crate) fn cast<M: Module>(module: M, dtype: Option<FloatDType>) -> M {
    struct Cast(FloatDType);

    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let require_grad = param.is_require_grad();
            param.map(|tensor| match tensor.is_autodiff() {
                // What is cast should be a leaf, and not hang on the one that it is cast from.
                true => (tensor.inner().cast(self.0).autodiff()).set_require_grad(require_grad),
                false => tensor.cast(self.0),
            })
        }
    }

    match dtype {
        Some(dtype) => module.map(&mut Cast(dtype)),
        None => module,
    }
}

/// The gradients that a loss of another scale and copies of another type have left, for the model: in f32,
/// and of the loss as it is.
pub(crate) fn of_model<M: Module>(
    module: &M,
    gradients: GradientsParams,
    scale: f64,
) -> GradientsParams {
    struct Restore {
        from: GradientsParams,
        to: GradientsParams,
        scale: f64,
    }

    impl ParameterVisitor for Restore {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // What is met a second time has been taken.
            if let Some(gradient) = self.from.remove::<D>(param.id) {
                let gradient = gradient.cast(FloatDType::F32).mul_scalar(1.0 / self.scale);
                self.to.register(param.id, gradient);
            }
        }
    }

    let mut restore = Restore {
        from: gradients,
        to: GradientsParams::new(),
        scale,
    };
    visit_parameters(module, &mut restore);
    restore.to
}

/// The same values and statistics, but leaves of a graph of their own.
pub(crate) fn with_fresh_leaves<L: Module>(live: &L) -> L {
    struct FreshLeaves;

    impl ModuleMapper for FreshLeaves {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let require_grad = param.is_require_grad();
            param.map(|tensor| tensor.inner().autodiff().set_require_grad(require_grad))
        }
    }

    share_leaves(live.clone().map(&mut FreshLeaves))
}
