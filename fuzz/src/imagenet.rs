//! Images, cached indices of folders, and labels.

use std::{
    fs::File,
    path::{Component, PathBuf},
    time::{Duration, SystemTime},
};

use burn::tensor::Device;
use stovepipe_imagenet::{Decoding, EvalTransform, ImageFolder, IndexCache, Loading};

use super::files::{in_folder, parts};

/// An image of at most 16,384 pixels is decoded and resized, or the error names its file.
pub fn image(bytes: &[u8]) {
    in_folder(&[("image", bytes)], |folder| {
        let path = folder.join("image");
        for orientation in [false, true] {
            let loading = Loading {
                size: 8,
                evaluation: EvalTransform {
                    resize: 8,
                    ..EvalTransform::default()
                },
                decoding: Decoding {
                    max_pixels: 1 << 14,
                    orientation,
                    ..Decoding::default()
                },
                ..Loading::default()
            };
            match loading.load(&path, &Device::default()) {
                Ok(image) => {
                    assert_eq!(image.dims(), [1, 3, 8, 8]);
                    let numbers = image.into_data();
                    assert!(numbers.iter::<f32>().all(f32::is_finite));
                }
                Err(error) => {
                    let path = path.display().to_string();
                    assert!(error.to_string().starts_with(&path), "{error}");
                }
            }
        }
    });
}

/// Whatever a cached index says, images are in their folder and have a class, and they are the same when they are read
/// again.
pub fn index(bytes: &[u8]) {
    let files = [
        ("train/cat/1.jpg", &b""[..]),
        ("train/dog/2.png", b""),
        ("train/dog/more/3.gif", b""),
        ("train.index.csv", bytes),
    ];
    in_folder(&files, |folder| {
        let train = folder.join("train");
        // An index counts if folders have the times that it names. Seeds name this one.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for name in ["cat", "dog/more", "dog", ""] {
            let folder = File::open(train.join(name));
            folder.unwrap().set_modified(time).unwrap();
        }
        let read = || {
            let read = ImageFolder::open(&train, &IndexCache::Beside).unwrap();
            let images = (0..read.len()).map(|image| (read.path(image), read.label(image)));
            let images: Vec<(PathBuf, usize)> = images.collect();
            (read.classes().to_vec(), images)
        };
        let (classes, images) = read();
        assert!(classes.len() >= 2 && !images.is_empty());
        for (path, label) in &images {
            let mut inside = path.strip_prefix(&train).unwrap().components();
            assert!(inside.all(|part| matches!(part, Component::Normal(_))));
            assert!(*label < classes.len());
        }
        assert_eq!(read(), (classes, images));
    });
}

/// A file of labels, and perhaps ILSVRC's numbers of classes after it, give a class to each of three images, or the error
/// names a file.
pub fn labels(bytes: &[u8]) {
    let [labels, map] = parts(bytes);
    let mut files = vec![
        ("val/a b.JPEG", &b""[..]),
        ("val/images/c.png", b""),
        ("val/v1.jpg", b""),
        ("val.txt", labels),
    ];
    if !map.is_empty() {
        files.push(("map_clsloc.txt", map));
    }
    let classes = ["n01", "n02", "n03"].map(str::to_owned);
    in_folder(&files, |folder| {
        let (images, labels) = (folder.join("val"), folder.join("val.txt"));
        match ImageFolder::open_flat(&images, &labels, &classes) {
            Ok(read) => {
                assert_eq!(read.len(), 3);
                assert!((0..3).all(|image| read.label(image) < classes.len()));
            }
            Err(error) => {
                let folder = folder.display().to_string();
                assert!(error.to_string().starts_with(&folder), "{error}");
            }
        }
    });
}
