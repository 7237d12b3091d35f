//! Leaves that many graphs may share.

use burn::{
    backend::{
        Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops},
        },
    },
    tensor::Tensor,
};

/// Leaves, such as the parameters of a layer, that many graphs are to share without becoming one.
///
/// Burn joins graphs that have a common leaf: they have one lock, and each backward pass looks at all of
/// them. A leaf that has been through a backward pass is no longer in Burn's books: later operations
/// on it begin graphs of their own, and it gets a gradient from each.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_autodiff::SharedLeaves;
///
/// let leaf = Tensor::<1>::from_floats([3.0], &Device::flex().autodiff()).require_grad();
/// let mut leaves = SharedLeaves::default();
/// leaves.add(&leaf);
/// leaves.separate();
///
/// let [first, second] = [2.0, 5.0].map(|factor| leaf.clone() * factor);
/// let of_first = leaf.grad(&first.backward()).unwrap().into_scalar::<f32>();
/// let of_second = leaf.grad(&second.backward()).unwrap().into_scalar::<f32>();
/// assert_eq!((of_first, of_second), (2.0, 5.0));
/// ```
#[derive(Debug, Default)]
pub struct SharedLeaves {
    /// Depends on all of them.
    root: Option<Tensor<1>>,
}

impl SharedLeaves {
    /// Adds a leaf. Tensors that track no gradient are left out.
    pub fn add<const D: usize>(&mut self, leaf: &Tensor<D>) {
        if !leaf.is_tracked() {
            return;
        }
        let root = self.root.take().unwrap_or_else(|| {
            let root = Tensor::zeros([1], &leaf.device());
            root.autodiff()
        });
        let next = joined::<Flex, D>(&root, leaf);
        #[cfg(feature = "cube")]
        let next = next.or_else(|| joined::<burn::backend::Cube, D>(&root, leaf));
        self.root = Some(next.unwrap_or_else(|| root + leaf.clone().sum()));
    }

    /// Makes graphs that use these leaves from now on independent of each other.
    pub fn separate(self) {
        if let Some(root) = self.root {
            drop(root.backward());
        }
    }
}

/// A scalar that depends on both; nothing is computed. `None` if they are not of this backend.
fn joined<B: Backend, const D: usize>(root: &Tensor<1>, leaf: &Tensor<D>) -> Option<Tensor<1>>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>>,
{
    let root = root.clone().try_into_primitive::<Autodiff<B>>().ok()?;
    let leaf = leaf.clone().try_into_primitive::<Autodiff<B>>().ok()?;
    let (scalar, root) = root.into_parts();
    let joined = Join.prepare::<NoCheckpointing>([root, leaf.node()]);
    let joined = joined.compute_bound().stateless(scalar);
    Some(Tensor::from_primitive::<Autodiff<B>>(joined))
}

#[derive(Debug)]
struct Join;

impl<B: Backend> Backward<B, 2> for Join {
    type State = ();

    fn backward(self, _: Ops<(), 2>, _: &mut Gradients, _: &mut Checkpointer) {}
}
