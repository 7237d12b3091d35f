//! How files lay out tensors.

/// How a file lays out what Burn and PyTorch lay out differently.
///
/// PyTorch's linear layers have weights `[out, in]`, Burn's `[in, out]`. PyTorch's norms have
/// `weight` and `bias`, Burn's `gamma` and `beta`. Only PyTorch's batch norms have
/// `num_batches_tracked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// Burn's, as [`save_model`](crate::save_model) writes it.
    Burn,
    /// PyTorch's.
    PyTorch,
}
