//! The seeds of fuzzing, as ordinary tests.

#[path = "../../../../fuzz/src/files.rs"]
mod files;
#[path = "../../../../fuzz/src/seeds.rs"]
mod replay;
#[path = "../../../../fuzz/src/imagenet.rs"]
mod targets;

use replay::replay;

#[test]
fn images() {
    replay("image", targets::image);
}

#[test]
fn cached_indices() {
    replay("index", targets::index);
}

#[test]
fn label_files() {
    replay("labels", targets::labels);
}
