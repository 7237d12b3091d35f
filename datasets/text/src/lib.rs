//! Text as Burn batches.
