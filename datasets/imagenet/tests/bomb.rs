//! Files that claim too many pixels are errors and take no memory, counted by the allocator.
#![allow(clippy::unwrap_used, missing_docs)]

mod folder;

use burn::tensor::Device;
use cap::Cap;
use folder::{jpeg, write};
use stovepipe_imagenet::Loading;
use tempfile::tempdir;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const SIDE: u16 = 60_000;

fn encoded(format: image::ImageFormat) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let image = image::RgbImage::new(8, 8);
    image.write_to(&mut file, format).unwrap();
    file.into_inner()
}

/// The file, with the side as its width and as its height, at `place`.
fn claiming(mut file: Vec<u8>, place: usize, side: &[u8]) -> Vec<u8> {
    file[place..place + 2 * side.len()].copy_from_slice(&side.repeat(2));
    file
}

/// A JPEG that claims to be 60,000 pixels high and wide.
fn large_jpeg() -> Vec<u8> {
    let file = jpeg(8, 8, 1);
    let frame = file
        .windows(2)
        .position(|pair| pair == [0xff, 0xc0])
        .unwrap();
    claiming(file, frame + 5, &SIDE.to_be_bytes())
}

/// The same as a PNG, with a new checksum of its header.
fn large_png() -> Vec<u8> {
    let file = encoded(image::ImageFormat::Png);
    let mut file = claiming(file, 16, &u32::from(SIDE).to_be_bytes());
    let crc = file[12..29].iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    });
    file[29..33].copy_from_slice(&(!crc).to_be_bytes());
    file
}

#[test]
fn a_bomb_is_an_error_and_takes_no_memory() {
    let data = tempdir().unwrap();
    let [bmp, gif] = [image::ImageFormat::Bmp, image::ImageFormat::Gif].map(encoded);
    for (name, file) in [
        ("bomb.jpg", large_jpeg()),
        ("bomb.png", large_png()),
        (
            "bomb.bmp",
            claiming(bmp, 18, &u32::from(SIDE).to_le_bytes()),
        ),
        ("bomb.gif", claiming(gif, 6, &SIDE.to_le_bytes())),
    ] {
        write(data.path(), &[(name, &file)]);
        let (before, most) = (ALLOCATOR.allocated(), ALLOCATOR.max_allocated());
        let loaded = Loading::default().load(&data.path().join(name), &Device::default());
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        assert!(error.contains("claims 60000×60000 pixels"), "{error}");
        let peak = ALLOCATOR.max_allocated();
        let taken = peak - before;
        assert!(peak == most || taken < 4 << 20, "{name}: {taken}");
    }
}
