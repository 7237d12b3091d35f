//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/plan.rs"]
mod targets;

use replay::replay;

#[test]
fn profiles() {
    replay("profile", targets::profile);
}

#[test]
fn machines() {
    replay("machine", targets::machine);
}

#[test]
fn graphs() {
    replay("graph", targets::graph);
}
