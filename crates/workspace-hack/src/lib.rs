//! Holds the features of shared dependencies equal; see its `Cargo.toml`. There is no code in it.
