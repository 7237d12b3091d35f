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

/// A JPEG that claims to be 60,000 pixels high and wide.
fn large_jpeg() -> Vec<u8> {
    let mut file = jpeg(8, 8, 1);
    let is_frame = |pair: &[u8]| pair == [0xff, 0xc0];
    let frame = file.windows(2).position(is_frame).unwrap();
    file[frame + 5..frame + 7].copy_from_slice(&SIDE.to_be_bytes());
    file[frame + 7..frame + 9].copy_from_slice(&SIDE.to_be_bytes());
    file
}

/// The same as a PNG, with a new checksum of its header.
fn large_png() -> Vec<u8> {
    let mut file = encoded(image::ImageFormat::Png);
    file[16..20].copy_from_slice(&u32::from(SIDE).to_be_bytes());
    file[20..24].copy_from_slice(&u32::from(SIDE).to_be_bytes());
    let crc = file[12..29].iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    });
    file[29..33].copy_from_slice(&(!crc).to_be_bytes());
    file
}

fn large_bmp() -> Vec<u8> {
    let mut file = encoded(image::ImageFormat::Bmp);
    file[18..22].copy_from_slice(&u32::from(SIDE).to_le_bytes());
    file[22..26].copy_from_slice(&u32::from(SIDE).to_le_bytes());
    file
}

fn large_gif() -> Vec<u8> {
    let mut file = encoded(image::ImageFormat::Gif);
    file[6..8].copy_from_slice(&SIDE.to_le_bytes());
    file[8..10].copy_from_slice(&SIDE.to_le_bytes());
    file
}

#[test]
fn a_bomb_is_an_error_and_takes_no_memory() {
    let data = tempdir().unwrap();
    for (name, file) in [
        ("bomb.jpg", large_jpeg()),
        ("bomb.png", large_png()),
        ("bomb.bmp", large_bmp()),
        ("bomb.gif", large_gif()),
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
