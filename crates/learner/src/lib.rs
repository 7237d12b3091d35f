//! A pipeline in the training loop of `burn-train`.
