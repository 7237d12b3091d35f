//! The copies of layers that a step works on, so that a failed step leaves the model unchanged.
//!
//! Burn keeps running statistics in cells. Clones of a module share them, and forward passes write them. So
//! there are three kinds of copies:
//!
//! * `live` is made once per step and has its own cells. Forward passes update them, and
//!   [`statistics`](super::statistics) reads them.
//! * `quiet` shares `live`'s cells but tracks no gradients. It runs forward without a tape.
//! * Tapes are recorded on copies with their own leaves: tapes with common leaves would be one graph. Copies
//!   for forward passes share `live`'s cells. Copies for recomputation have cells that are never read, so
//!   each micro-batch counts once. A backward pass returns its copies for the next tape.
//!
//! In mixed precision, copies are cast once per step, and their gradients are cast back.

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
    /// Made when first needed.
    quiet: Vec<L>,
    /// Free copies to record a tape on, by [`CopyUse`].
    for_forward: Vec<Vec<L>>,
    for_recompute: Vec<Vec<L>>,
}

/// What a tape is recorded for. Only forward passes count in running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyUse {
    Forward,
    Recompute,
}

impl<L: Module> Copies<L> {
    pub(crate) fn to_train(layers: &[L], dtype: Option<FloatDType>) -> Self {
        let copy = |layer: &L| share_leaves(cast(layer.valid().train(), dtype));
        let live: Vec<_> = layers.iter().map(copy).collect();
        Self {
            for_forward: vec![live.clone()],
            live,
            ..Self::none()
        }
    }

    pub(crate) fn to_infer(layers: &[L], dtype: Option<FloatDType>) -> Self {
        let copy = |layer: &L| cast(layer.valid(), dtype);
        Self {
            quiet: layers.iter().map(copy).collect(),
            ..Self::none()
        }
    }

    pub(crate) fn none() -> Self {
        Self {
            live: Vec::new(),
            quiet: Vec::new(),
            for_forward: Vec::new(),
            for_recompute: Vec::new(),
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
    pub(crate) fn take(&mut self, used_for: CopyUse) -> Vec<L> {
        let (free, copy) = match used_for {
            CopyUse::Forward => (&mut self.for_forward, with_fresh_leaves as fn(&L) -> L),
            CopyUse::Recompute => (&mut self.for_recompute, live as fn(&L) -> L),
        };
        (free.pop()).unwrap_or_else(|| self.live.iter().map(copy).collect())
    }

    /// Takes copies back when their tape is dropped.
    pub(crate) fn give_back(&mut self, used_for: CopyUse, copies: Vec<L>) {
        match used_for {
            CopyUse::Forward => self.for_forward.push(copies),
            CopyUse::Recompute => self.for_recompute.push(copies),
        }
    }

    /// The copies whose cells hold the step's statistics.
    pub(crate) fn live(&self) -> &[L] {
        &self.live
    }
}

/// A copy with its own statistics and leaves, ready to train.
pub(crate) fn live<L: Module>(layer: &L) -> L {
    share_leaves(layer.valid().train())
}

/// A copy with the same statistics that tracks no gradients.
pub(crate) fn quiet<L: Module>(live: &L) -> L {
    live.clone().no_grad()
}

/// Casts all floats, statistics too, if there is a type. No other module may share the statistics.
pub(crate) fn cast<M: Module>(module: M, dtype: Option<FloatDType>) -> M {
    struct Cast(FloatDType);

    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let require_grad = param.is_require_grad();
            param.map(|tensor| {
                if tensor.is_autodiff() {
                    // The result is a leaf: it does not depend on the original in the graph.
                    (tensor.inner().cast(self.0).autodiff()).set_require_grad(require_grad)
                } else {
                    tensor.cast(self.0)
                }
            })
        }
    }

    match dtype {
        Some(dtype) => module.map(&mut Cast(dtype)),
        None => module,
    }
}

/// Turns gradients of cast copies and a scaled loss into the model's: in f32, unscaled.
pub(crate) fn for_model<M: Module>(
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
            // A second visit of the same parameter finds nothing.
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

/// A copy with the same values and statistics, but its own leaves.
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
