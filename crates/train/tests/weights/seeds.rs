//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/train.rs"]
mod targets;

use replay::replay;

#[test]
fn files_of_weights() {
    replay("weights", targets::weights);
}

#[test]
fn states_of_checkpoints() {
    replay("standing", targets::standing);
}

#[test]
fn plans() {
    replay("plan", targets::plan);
}
