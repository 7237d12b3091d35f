//! Next to what Pillow makes of the same files.

use super::*;
use crate::{
    golden::{difference, path, picture},
    raster::Raster,
};

fn decoded(name: &str, settings: &Decoding) -> Raster {
    let mut decoded = Decoded::default();
    decoded
        .read(&path(&format!("decoding/{name}")), settings)
        .unwrap();
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
fn files_are_what_pillow_says() {
    let settings = Decoding::default();
    for name in [
        "a_png.JPEG",
        "palette.png",
        "transparent.png",
        "gray_transparent.png",
        "one_bit.png",
        "deep.png",
        "photo.webp",
        "photo.bmp",
        "photo.gif",
    ] {
        check(name, "rgb", &settings, 0, 0.0);
    }
    // Decoders of JPEGs may round as they like.
    for name in [
        "photo.jpg",
        "progressive.jpg",
        "full_colour.jpg",
        "restarts.jpg",
        "gray.jpg",
        "cmyk.jpg",
        "ycck.jpg",
        "cmyk_of_nobody.jpg",
        "turned.jpg",
        "odd_exif.jpg",
        "short_exif.jpg",
        "bytes_between.jpg",
        "bytes_after.jpg",
    ] {
        check(name, "rgb", &settings, 6, 0.6);
    }
}

#[test]
fn images_are_turned_if_wanted() {
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

/// What is wrong with a file whose content is `bytes`.
fn wrong(bytes: &[u8], settings: &Decoding) -> Option<String> {
    let mut decoded = Decoded {
        file: bytes.to_vec(),
        ..Decoded::default()
    };
    decoded.decode(settings).err()
}

#[test]
fn files_that_are_cut_short_are_errors_wherever_they_are_cut() {
    let settings = Decoding::default();
    for name in [
        "photo.jpg",
        "progressive.jpg",
        "restarts.jpg",
        "gray.jpg",
        "cmyk.jpg",
        "a_png.JPEG",
        "palette.png",
        "photo.webp",
        "photo.bmp",
    ] {
        let file = std::fs::read(path(&format!("decoding/{name}"))).unwrap();
        assert_eq!(wrong(&file, &settings), None);
        // What may follow the pixels of a PNG or BMP says nothing of them.
        let needed = match name.rsplit('.').next() {
            Some("jpg") => file.len(),
            _ => file.len() - 16,
        };
        for length in (0..needed).step_by(7).chain([needed - 1]) {
            assert!(
                wrong(&file[..length], &settings).is_some(),
                "{name}: {length} of {}",
                file.len()
            );
        }
    }
}

/// In the middle of the pixels, sixteen bits of ones: no code has so many.
#[test]
fn pixels_that_are_no_code_are_an_error() {
    for name in ["photo.jpg", "gray.jpg", "cmyk.jpg", "progressive.jpg"] {
        let mut file = std::fs::read(path(&format!("decoding/{name}"))).unwrap();
        let middle = file.len() * 3 / 4;
        for (place, byte) in file[middle..middle + 16].iter_mut().enumerate() {
            *byte = if place % 2 == 0 { 0xff } else { 0 };
        }
        assert!(wrong(&file, &Decoding::default()).is_some(), "{name}");
    }
}

#[test]
fn what_is_too_large_is_an_error_that_says_so() {
    let settings = Decoding {
        max_pixels: 45 * 37 - 1,
        ..Decoding::default()
    };
    for name in [
        "photo.jpg",
        "progressive.jpg",
        "a_png.JPEG",
        "photo.webp",
        "photo.bmp",
        "photo.gif",
    ] {
        let file = std::fs::read(path(&format!("decoding/{name}"))).unwrap();
        let expected = "claims 45×37 pixels, more than the 1664 that an image may have";
        assert_eq!(wrong(&file, &settings).as_deref(), Some(expected), "{name}");
    }
    let settings = Decoding {
        max_bytes: 100,
        ..Decoding::default()
    };
    let mut decoded = Decoded::default();
    let error = decoded
        .read(&path("decoding/photo.jpg"), &settings)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("photo.jpg: has more than 100 bytes"),
        "{error}"
    );
}

#[test]
fn what_is_no_image_is_an_error() {
    let settings = Decoding::default();
    assert_eq!(wrong(b"", &settings).as_deref(), Some("is empty"));
    let expected = "is no image of a known kind (JPEG, PNG, WebP, BMP, GIF)";
    assert_eq!(wrong(b"a text", &settings).as_deref(), Some(expected));
}

mod fuzz {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        /// Damaged files decode, or are errors: nothing panics beyond `decode`, and what decodes has its pixels.
        #[test]
        fn damage_is_an_error_or_an_image(
            name in prop::sample::select(vec!["photo.jpg", "progressive.jpg", "cmyk.jpg", "a_png.JPEG", "photo.webp", "photo.gif", "photo.bmp"]),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut file = std::fs::read(path(&format!("decoding/{name}"))).unwrap();
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
