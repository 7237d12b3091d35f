//! Compares decoded files with those of Pillow.

use super::*;
use crate::{
    golden::{difference, path, picture},
    raster::Raster,
};

fn decoded(name: &str, settings: &Decoding) -> Raster {
    let mut decoded = Decoded::default();
    let path = path(&format!("decoding/{name}"));
    decoded.read(&path, settings).unwrap();
    Raster {
        width: decoded.width as usize,
        height: decoded.height as usize,
        pixels: decoded.pixels.as_chunks().0.to_vec(),
    }
}

fn check(name: &str, expected: &str, settings: &Decoding, largest: u8, mean: f64) {
    let expected = picture(&format!("decoding/{name}.{expected}.png"));
    let (found_largest, found_mean) = difference(&decoded(name, settings), &expected);
    let text = format!("{name}: {found_largest} at most, {found_mean:.3} in the mean");
    println!("{text}");
    assert!(found_largest <= largest && found_mean <= mean, "{text}");
}

#[test]
fn files_are_decoded_as_by_pillow() {
    let settings = Decoding::default();
    let exact = "a_png.JPEG palette.png transparent.png gray_transparent.png one_bit.png deep.png \
                 photo.webp photo.bmp photo.gif";
    for name in exact.split(' ') {
        check(name, "rgb", &settings, 0, 0.0);
    }
    // JPEG decoders may round differently.
    let rounded = "photo.jpg progressive.jpg full_colour.jpg restarts.jpg gray.jpg cmyk.jpg ycck.jpg \
                   cmyk_of_nobody.jpg turned.jpg odd_exif.jpg short_exif.jpg bytes_between.jpg \
                   bytes_after.jpg";
    for name in rounded.split(' ') {
        check(name, "rgb", &settings, 6, 0.6);
    }
}

#[test]
fn images_are_rotated_if_asked_for() {
    let settings = Decoding {
        orientation: true,
        ..Decoding::default()
    };
    check("turned.jpg", "upright", &settings, 6, 0.6);
    for name in ["photo.jpg", "odd_exif.jpg", "short_exif.jpg"] {
        check(name, "rgb", &settings, 6, 0.6);
    }
    check("a_png.JPEG", "rgb", &settings, 0, 0.0);
}

fn content(name: &str) -> Vec<u8> {
    std::fs::read(path(&format!("decoding/{name}"))).unwrap()
}

/// The error of decoding `bytes`, if there is one.
fn error(bytes: &[u8], settings: &Decoding) -> Option<String> {
    let file = bytes.to_vec();
    let mut decoded = Decoded {
        file,
        ..Decoded::default()
    };
    decoded
        .decode(settings)
        .err()
        .map(|error| error.to_string())
}

#[test]
fn truncated_files_are_errors() {
    let settings = Decoding::default();
    let jpeg = "photo.jpg progressive.jpg restarts.jpg gray.jpg cmyk.jpg";
    let other = "a_png.JPEG palette.png photo.webp photo.bmp";
    for name in jpeg.split(' ').chain(other.split(' ')) {
        let file = content(name);
        assert_eq!(error(&file, &settings), None);
        // The bytes after the pixels of a PNG or BMP are not needed.
        let needed = file.len() - if jpeg.contains(name) { 0 } else { 16 };
        for length in (0..needed).step_by(7).chain([needed - 1]) {
            let error = error(&file[..length], &settings);
            assert!(error.is_some(), "{name}: {length} of {}", file.len());
        }
    }
}

/// Sixteen bits of ones in the pixels: no code has so many.
#[test]
fn invalid_codes_are_errors() {
    for name in ["photo.jpg", "gray.jpg", "cmyk.jpg", "progressive.jpg"] {
        let mut file = content(name);
        let middle = file.len() * 3 / 4;
        for (place, byte) in file[middle..middle + 16].iter_mut().enumerate() {
            *byte = if place % 2 == 0 { 0xff } else { 0 };
        }
        assert!(error(&file, &Decoding::default()).is_some(), "{name}");
    }
}

#[test]
fn large_files_and_images_are_errors() {
    let settings = Decoding {
        max_pixels: 45 * 37 - 1,
        ..Decoding::default()
    };
    let names = "photo.jpg progressive.jpg a_png.JPEG photo.webp photo.bmp photo.gif";
    for name in names.split(' ') {
        let expected = "claims 45×37 pixels, but at most 1664 are allowed";
        let error = error(&content(name), &settings);
        assert_eq!(error.as_deref(), Some(expected), "{name}");
    }
    let settings = Decoding {
        max_bytes: 100,
        ..Decoding::default()
    };
    let photo = path("decoding/photo.jpg");
    let error = Decoded::default().read(&photo, &settings).unwrap_err();
    let expected = "photo.jpg: has more than 100 bytes";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn other_files_are_errors() {
    let settings = Decoding::default();
    assert_eq!(error(b"", &settings).as_deref(), Some("is empty"));
    let expected = "is not an image of a known format (JPEG, PNG, WebP, BMP, GIF)";
    assert_eq!(error(b"a text", &settings).as_deref(), Some(expected));
}

mod fuzz {
    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    const NAMES: &str =
        "photo.jpg progressive.jpg cmyk.jpg a_png.JPEG photo.webp photo.gif photo.bmp";

    proptest! {
        /// Damaged files do not panic, and decoded images have all their pixels.
        #[test]
        fn damage_is_an_error_or_an_image(
            name in prop::sample::select(NAMES.split(' ').collect::<Vec<_>>()),
            changes in vec((any::<Index>(), any::<u8>()), 1..6),
        ) {
            let mut file = content(name);
            for (at, value) in changes {
                *at.get_mut(&mut file) = value;
            }
            let settings = Decoding { max_pixels: 1 << 20, orientation: true, ..Decoding::default() };
            let mut decoded = Decoded { file, ..Decoded::default() };
            if decoded.decode(&settings).is_ok() {
                prop_assert_eq!(decoded.pixels.len(), 3 * (decoded.width * decoded.height) as usize);
            }
        }
    }
}
