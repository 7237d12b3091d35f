// Writes folders like those of the official archives. The examples in the documentation include this file too.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A record: label bytes, then `pixel(channel, y, x)`, channel by channel.
#[allow(dead_code)]
pub fn record(labels: &[u8], pixel: impl Fn(usize, usize, usize) -> u8) -> Vec<u8> {
    let mut record = labels.to_vec();
    for channel in 0..3 {
        for y in 0..32 {
            record.extend((0..32).map(|x| pixel(channel, y, x)));
        }
    }
    record
}

/// Writes `cifar-10-batches-bin` into `parent`, with the records that `file` makes for a file name.
#[allow(dead_code)]
pub fn write_cifar10(parent: &Path, file: impl Fn(&str) -> Vec<u8>) -> PathBuf {
    let folder = parent.join("cifar-10-batches-bin");
    fs::create_dir(&folder).unwrap();
    for number in 1..=5 {
        let name = format!("data_batch_{number}.bin");
        fs::write(folder.join(&name), file(&name)).unwrap();
    }
    fs::write(folder.join("test_batch.bin"), file("test_batch.bin")).unwrap();
    // As published, with a blank line at the end.
    let names = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    fs::write(folder.join("batches.meta.txt"), names).unwrap();
    folder
}

/// Writes `cifar-100-binary` into `parent`, with the records that `file` makes for a file name.
#[allow(dead_code)]
pub fn write_cifar100(parent: &Path, file: impl Fn(&str) -> Vec<u8>) -> PathBuf {
    let folder = parent.join("cifar-100-binary");
    fs::create_dir(&folder).unwrap();
    for name in ["train.bin", "test.bin"] {
        fs::write(folder.join(name), file(name)).unwrap();
    }
    for (kind, classes) in [("coarse", 20), ("fine", 100)] {
        let names = (0..classes).map(|class| format!("{kind}_{class}\n"));
        let names: String = names.collect();
        fs::write(folder.join(format!("{kind}_label_names.txt")), names).unwrap();
    }
    folder
}
