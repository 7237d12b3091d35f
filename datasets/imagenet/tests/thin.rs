//! Images of one by millions of pixels take memory by their pixels, not by their length, counted by the allocator.
#![allow(clippy::unwrap_used, missing_docs)]

mod folder;

use std::{io::Cursor, path::Path};

use cap::Cap;
use folder::write;
use image::{GrayImage, ImageFormat, Luma};
use stovepipe_imagenet::{
    ImageBatch, ImageFolder, ImagenetError, Images, IndexCache, Interpolation, Loading,
    RandomResizedCrop,
};
use tempfile::{TempDir, tempdir};

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const PIXELS: u32 = 2_000_000;

/// The memory for decoding, and a little for the result.
const MOST: usize = 15 * PIXELS as usize + (8 << 20);

/// Images of `PIXELS` pixels in small files, each in its own class.
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
    let mut loading = Loading {
        workers: 1,
        skip: 0,
        ..Loading::default()
    };
    loading.evaluation.interpolation = interpolation;
    let crop = &mut loading.augmentation.crop;
    (crop.area, crop.ratio, crop.interpolation) = ([1.0, 1.0], ratio, interpolation);
    Images::new(ImageFolder::open(data, &IndexCache::Off).unwrap(), loading).unwrap()
}

fn load(images: &Images, image: usize, training: bool) -> Result<ImageBatch, ImagenetError> {
    if training {
        return images.train_batches(vec![image], 1, 0, 0).next().unwrap();
    }
    // The batches before are dropped one by one.
    images.eval_batches(1).nth(image).unwrap()
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
                let case = format!("{image} {training} {interpolation:?}");
                assert!(taken < MOST, "{case}: {taken}");
            }
            // A crop of the whole image is an error.
            let error = load(&images_of([1e-9, 1e9]), image, true).unwrap_err();
            let error = error.to_string();
            let expected = "thin.png: cannot be resized: the part to show is";
            assert!(error.contains(expected), "{error}");
            let most = "pixels long, but at most 65536 are allowed";
            assert!(error.ends_with(most), "{error}");
        }
    }
    let taken = ALLOCATOR.max_allocated();
    assert!(taken < MOST, "{taken}");
}
