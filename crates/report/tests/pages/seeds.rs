//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/report.rs"]
mod targets;

use replay::replay;

#[test]
fn headers_of_pictures() {
    replay("picture", targets::picture);
}

#[test]
fn configurations() {
    replay("configuration", targets::configuration);
}

#[test]
fn sums_of_two_runs() {
    replay("sums", targets::sums);
}
