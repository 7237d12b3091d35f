//! Folders of CIFAR.

use std::iter;

use stovepipe_cifar::{Cifar, CifarLabels};

use super::files::{in_folder, parts};

/// The first byte says which labels are read. Then come two files of names, and images as runs: a byte, and how often it
/// is there, in two bytes. So an input of a few bytes has whole images of 3,073 or 3,074.
pub fn cifar(bytes: &[u8]) {
    use CifarLabels::{Cifar10, Cifar100Coarse, Cifar100Fine};
    let Some((&kind, rest)) = bytes.split_first() else {
        return;
    };
    let labels = [Cifar10, Cifar100Fine, Cifar100Coarse][usize::from(kind) % 3];
    let [names, fine_names, runs] = parts(rest);
    let (runs, _) = runs.as_chunks();
    let runs = runs.iter().flat_map(|&[byte, low, high]| {
        iter::repeat_n(byte, u16::from_le_bytes([low, high]).into())
    });
    let images: Vec<u8> = runs.take(1 << 16).collect();
    let (file, label_bytes) = match labels {
        Cifar10 => ("test_batch.bin", 1),
        Cifar100Fine | Cifar100Coarse => ("test.bin", 2),
    };
    let files = [
        ("batches.meta.txt", names),
        ("coarse_label_names.txt", names),
        ("fine_label_names.txt", fine_names),
        (file, &images),
    ];
    in_folder(&files, |folder| match Cifar::test(labels, folder) {
        Ok(read) => {
            assert_eq!(read.as_bytes(), images);
            assert_eq!(read.names().len(), labels.classes());
            for image in images.chunks(label_bytes + 3072) {
                // The fine label is the second one.
                let byte = usize::from(labels == Cifar100Fine);
                assert!(usize::from(image[byte]) < labels.classes());
            }
        }
        Err(error) => {
            let folder = folder.display().to_string();
            assert!(error.to_string().starts_with(&folder), "{error}");
        }
    });
}
