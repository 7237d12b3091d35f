//! How attention is split into heads.

/// How attention is split into heads, and whether it is causal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The number of heads. It divides the width of the model.
    pub count: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl Heads {
    /// What products of queries and keys are multiplied by.
    pub(crate) fn scale(self, d: usize) -> f32 {
        1.0 / ((d / self.count) as f32).sqrt()
    }
}
