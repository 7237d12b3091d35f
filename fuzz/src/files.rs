//! Inputs that are files: some readers take nothing but a path.

use std::{array, fs, path::Path};

/// Runs a target in a new folder with these files, by their paths in it.
pub fn in_folder(files: &[(&str, &[u8])], run: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    run(folder.path());
}

/// Cuts an input at its first zeros, which text has not: so one input is several files. Those that it lacks are empty.
pub fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = bytes.splitn(N, |&byte| byte == 0);
    array::from_fn(|_| parts.next().unwrap_or_default())
}
