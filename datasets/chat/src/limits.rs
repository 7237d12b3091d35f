//! Limits of templates.

/// The most instructions of a rendering. One also pays for 64 bytes, which limits memory, too.
pub(crate) const MOST_INSTRUCTIONS: u64 = 1_000_000;

/// The stack of a rendering: a template may put lists into lists as often as it has instructions,
/// and they are dropped recursively. 256 MiB are enough without optimization, too. Memory is only
/// used as far as the stack is.
pub(crate) const STACK: usize = 1 << 28;

/// The most bytes of a template: the compiler is recursive, too.
pub(crate) const LONGEST_TEMPLATE: usize = 1 << 18;

/// The most bytes of a rendering.
pub(crate) const LONGEST_OUTPUT: usize = 1 << 24;
