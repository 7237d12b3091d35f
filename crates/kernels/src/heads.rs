//! How attention is split into heads.

/// How attention is split into heads, and whether it is causal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The number of heads.
    pub count: usize,
    /// The number of heads of keys and values. It divides `count`: heads next to each other share one
    /// (Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head
    /// Checkpoints", 2023).
    pub keys: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl Heads {
    /// Heads of which each has its own keys and values.
    ///
    /// ```
    /// use stovepipe_kernels::Heads;
    ///
    /// assert_eq!(Heads::new(4, true), Heads { count: 4, keys: 4, causal: true });
    /// ```
    #[must_use]
    pub fn new(count: usize, causal: bool) -> Self {
        let keys = count;
        Self {
            count,
            keys,
            causal,
        }
    }

    /// The width of a head whose queries, keys and values have so many columns; `None` if they do not fit.
    pub(crate) fn width(self, columns: usize) -> Option<usize> {
        let parts = self.count.checked_add(self.keys.checked_mul(2)?)?;
        let fits = self.keys > 0 && self.count.is_multiple_of(self.keys);
        (fits && columns.is_multiple_of(parts)).then(|| columns / parts)
    }

    /// The heads that share keys and values.
    pub(crate) fn group(self) -> usize {
        self.count / self.keys
    }

    /// What products of queries and keys are multiplied by, for heads of this width.
    pub(crate) fn scale(self, width: usize) -> f32 {
        1.0 / (width as f32).sqrt()
    }
}
