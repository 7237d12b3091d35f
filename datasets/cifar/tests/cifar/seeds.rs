//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/cifar.rs"]
mod targets;

use replay::replay;

#[test]
fn folders() {
    replay("cifar", targets::cifar);
}
