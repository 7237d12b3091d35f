//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/schedule.rs"]
mod targets;

use replay::replay;

#[test]
fn csv() {
    replay("csv", targets::csv);
}

#[test]
fn schedules() {
    replay("schedule", targets::schedule);
}

#[test]
fn programs() {
    replay("program", targets::program);
}
