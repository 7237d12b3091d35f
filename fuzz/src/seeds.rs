//! Runs a target on its seeds, for ordinary tests.

use std::{fs, path::Path};

/// Runs a target on all its seeds, of which there must be some. A test that fails prints the seed.
pub fn replay(target: &str, run: fn(&[u8])) {
    // Tests run in the folder of their package.
    let seeds = Path::new("../../fuzz/seeds").join(target);
    let entries =
        fs::read_dir(&seeds).unwrap_or_else(|error| panic!("{}: {error}", seeds.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!paths.is_empty(), "{} is empty", seeds.display());
    paths.sort();
    for path in paths {
        println!("{}", path.display());
        run(&fs::read(&path).unwrap());
    }
}
