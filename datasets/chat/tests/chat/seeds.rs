//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/chat.rs"]
mod targets;

use replay::replay;

#[test]
fn json_lines() {
    replay("jsonl", targets::jsonl);
}

#[test]
fn folders_of_models() {
    replay("model", targets::model);
}
