//! The copies of layers that a step works on, so that a failed step leaves the model unchanged.
//!
//! Burn keeps running statistics in cells. Clones of a module share them, and forward passes write them. So
//! there are three kinds of copies:
//!
//! * `live` is made once per step and has its own cells. Forward passes update them, and
//!   [`statistics`](super::statistics) reads them.
//! * `quiet` shares `live`'s cells but tracks no gradients. It runs forward without a tape.
//! * `again` is for recomputation. Its cells are never read, so each micro-batch counts once. Layers without
//!   statistics need no such copies, and no layer does once all forward passes have counted.
//!
//! Tapes share the layers that they are recorded on, which are those of `live` and `again`. Burn would join tapes with
//! common leaves to one graph, so the leaves are [taken out of its books](SharedLeaves) first.
//!
//! In mixed precision, copies are cast once per step. Their gradients are cast back before they are added up,
//! and the scale of the loss is taken out of the sums.

use std::{ops::Range, rc::Rc};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{FloatDType, Tensor},
};
use stovepipe_autodiff::SharedLeaves;

use crate::model::{
    parameters::{ParameterVisitor, visit_parameters},
    ties::share_leaves,
};

/// The copies of a stage's layers.
pub(crate) struct Copies<L> {
    live: Vec<Rc<L>>,
    /// Made when first needed, like the next ones.
    quiet: Vec<L>,
    again: Vec<Rc<L>>,
}

impl<L: Module> Copies<L> {
    pub(crate) fn to_train(layers: &[L], dtype: Option<FloatDType>) -> Self {
        let copy = |layer: &L| Rc::new(separate(share_leaves(cast(layer.valid().train(), dtype))));
        Self {
            live: layers.iter().map(copy).collect(),
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
            again: Vec::new(),
        }
    }

    /// Copies to run forward without a tape.
    pub(crate) fn quiet(&mut self) -> &[L] {
        if self.quiet.is_empty() {
            self.quiet = self.live.iter().map(|live| quiet(&**live)).collect();
        }
        &self.quiet
    }

    /// Copies to record a tape on, of a forward pass that has run already. Layers, by their index, that will count
    /// no more need none of their own.
    pub(crate) fn again(&mut self, counts: impl Fn(usize) -> bool) -> &[Rc<L>] {
        if self.again.is_empty() {
            let copies = self.live.iter().enumerate();
            let copies = copies.map(|(layer, own)| match counts(layer) {
                true => Rc::new(live(&**own)),
                false => own.clone(),
            });
            self.again = copies.collect();
        }
        &self.again
    }

    /// Drops what was made for forward passes that are over.
    pub(crate) fn end_forward(&mut self) {
        (self.quiet, self.again) = (Vec::new(), Vec::new());
    }

    /// Copies whose cells hold the step's statistics.
    pub(crate) fn live(&self) -> Vec<&L> {
        self.live.iter().map(|live| &**live).collect()
    }

    /// The same of some layers, to record a tape on.
    pub(crate) fn to_record(&self, layers: Range<usize>) -> Vec<Rc<L>> {
        self.live[layers].to_vec()
    }
}

/// A copy with its own statistics and leaves, ready to train. Many tapes may share it.
pub(crate) fn live<L: Module>(layer: &L) -> L {
    separate(share_leaves(layer.valid().train()))
}

/// Makes tapes that are recorded on a copy independent of each other.
fn separate<L: Module>(copy: L) -> L {
    struct Separate(SharedLeaves);

    impl ModuleVisitor for Separate {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.add(&param.val());
        }
    }

    let mut leaves = Separate(SharedLeaves::default());
    copy.visit(&mut leaves);
    leaves.0.separate();
    copy
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

/// Gradients of cast copies in f32, in which they are added up.
pub(crate) fn widened<M: Module>(module: &M, gradients: GradientsParams) -> GradientsParams {
    changed(module, gradients, Widen)
}

/// Gradients of a scaled loss as those of the loss.
pub(crate) fn unscaled<M: Module>(
    module: &M,
    gradients: GradientsParams,
    scale: f64,
) -> GradientsParams {
    changed(module, gradients, Unscale(scale))
}

trait GradientChange {
    fn of<const D: usize>(&self, gradient: Tensor<D>) -> Tensor<D>;
}

struct Widen;

impl GradientChange for Widen {
    fn of<const D: usize>(&self, gradient: Tensor<D>) -> Tensor<D> {
        gradient.cast(FloatDType::F32)
    }
}

struct Unscale(f64);

impl GradientChange for Unscale {
    fn of<const D: usize>(&self, gradient: Tensor<D>) -> Tensor<D> {
        gradient.mul_scalar(1.0 / self.0)
    }
}

fn changed<M: Module>(
    module: &M,
    gradients: GradientsParams,
    change: impl GradientChange,
) -> GradientsParams {
    struct Change<C> {
        from: GradientsParams,
        to: GradientsParams,
        change: C,
    }

    impl<C: GradientChange> ParameterVisitor for Change<C> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // A second visit of the same parameter finds nothing.
            if let Some(gradient) = self.from.remove::<D>(param.id) {
                self.to.register(param.id, self.change.of(gradient));
            }
        }
    }

    let mut change = Change {
        from: gradients,
        to: GradientsParams::new(),
        change,
    };
    visit_parameters(module, &mut change);
    change.to
}
