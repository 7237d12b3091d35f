//! Inputs that are text.

/// Runs a target on an input that is UTF-8: readers of text are given nothing else.
pub fn text(bytes: &[u8], run: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        run(text);
    }
}
