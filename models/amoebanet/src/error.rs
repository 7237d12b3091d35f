//! Errors of configurations.

/// A configuration that is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AmoebaNetError {
    /// The normal cells form three groups of one size.
    #[error("the number of normal cells must be a multiple of 3 from 3 to 3000, not {0}")]
    Layers(usize),
    /// The stem has a quarter of the filters.
    #[error("the number of filters must be a multiple of 4 from 4 to 65536, not {0}")]
    Filters(usize),
    /// There are no classes.
    #[error("there must be at least one class")]
    Classes,
    /// At 1, everything would be dropped.
    #[error("the probability of drop-path must be at least 0 and less than 1, not {0:?}")]
    DropPath(f64),
}
