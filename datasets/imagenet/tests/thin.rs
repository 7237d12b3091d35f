//! Images that are a pixel wide and millions high, or the other way round: they take memory by their pixels, not by their length.
//! Bytes are counted by the allocator.
#![allow(clippy::unwrap_used, missing_docs)]

mod folder;

use std::{io::Cursor, path::Path};

use cap::Cap;
use folder::write;
use image::{GrayImage, ImageFormat, Luma};
use stovepipe_imagenet::{
    Augmentation, Evaluation, ImageBatch, ImageFolder, ImagenetError, Images, IndexCache,
    Interpolation, Loading, RandomResizedCrop,
};
use tempfile::{TempDir, tempdir};

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const PIXELS: u32 = 2_000_000;

/// What decoding may take, and a little for what is shown.
const MOST: usize = 15 * PIXELS as usize + (8 << 20);

/// Images of so many pixels, each in a class of its own. Their files are small.
fn data() -> TempDir {
    let data = tempdir().unwrap();
    for (width, height) in [(1, PIXELS), (PIXELS, 1), (8, PIXELS / 8), (PIXELS / 8, 8)] {
        let image = GrayImage::from_fn(width, height, |x, y| Luma([(x + y) as u8]));
        let mut file = Cursor::new(Vec::new());
        image.write_to(&mut file, ImageFormat::Png).unwrap();
        let name = format!("{width} by {height}/thin.png");
        write(data.path(), &[(&name, &file.into_inner())]);
    }
    data
}

fn images(data: &Path, interpolation: Interpolation, ratio: [f64; 2]) -> Images {
    let crop = RandomResizedCrop {
        area: [1.0, 1.0],
        ratio,
        interpolation,
    };
    let loading = Loading {
        workers: 1,
        skip: 0,
        evaluation: Evaluation {
            interpolation,
            ..Evaluation::default()
        },
        augmentation: Augmentation {
            crop,
            ..Augmentation::default()
        },
        ..Loading::default()
    };
    Images::new(ImageFolder::open(data, &IndexCache::Off).unwrap(), loading).unwrap()
}

/// Loads an image, as for training or not.
fn load(images: &Images, image: usize, training: bool) -> Result<ImageBatch, ImagenetError> {
    let mut batches = match training {
        true => images.train_batches(vec![image], 1, 0, 0),
        // One at a time: the batches before are let go.
        false => images.eval_batches(1),
    };
    let skipped = if training { 0 } else { image };
    batches.nth(skipped).unwrap()
}

#[test]
fn a_long_image_takes_memory_by_its_pixels() {
    let data = data();
    let usual = RandomResizedCrop::default().ratio;
    for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
        let images_of = |ratio| images(data.path(), interpolation, ratio);
        for image in 0..4 {
            for training in [false, true] {
                let before = ALLOCATOR.allocated();
                let batch = load(&images_of(usual), image, training).unwrap();
                assert_eq!(batch.labels(), [image as i32]);
                drop(batch);
                let taken = ALLOCATOR.max_allocated() - before;
                assert!(
                    taken < MOST,
                    "{image} {training} {interpolation:?}: {taken}"
                );
            }
            // What would show all of such an image is an error that names it.
            let error = load(&images_of([1e-9, 1e9]), image, true).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("thin.png: cannot be shown: the part to be seen is")
                    && error.contains("pixels long, and may be 65536"),
                "{error}"
            );
        }
    }
    let taken = ALLOCATOR.max_allocated();
    assert!(taken < MOST, "{taken}");
}
