//! Memory for encoding a long text, counted by the allocator.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::path::Path;

use cap::Cap;
use stovepipe_text::{Text, Tokenizer};

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

#[test]
fn memory_is_that_of_the_tokens_and_a_piece() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers/pairs.json");
    let tokenizer = Tokenizer::read(&path).unwrap();
    let text = Text::new(["the cat sat on the mat, and it was 12 o'clock.\n".repeat(90_000)]);
    let before = ALLOCATOR.max_allocated().max(ALLOCATOR.allocated());
    let tokens = text.encode(&tokenizer).unwrap();
    let peak = ALLOCATOR.max_allocated() - before;
    // A growing vector has twice its length, and is copied. A piece takes about 15 MiB.
    let bound = 4 * size_of_val(&*tokens) + (32 << 20);
    assert!(peak < bound, "{peak} bytes for {} tokens", tokens.len());
}
