//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/text.rs"]
mod targets;

use replay::replay;

#[test]
fn files_of_text() {
    replay("text", targets::text);
}

#[test]
fn tokenizer_files() {
    replay("tokenizer", targets::tokenizer);
}
