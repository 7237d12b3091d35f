// Folders of images for tests and examples.

#[allow(unused_imports)]
use std::{fs, io::Cursor, path::Path};

/// Writes files by name, with their folders.
#[allow(dead_code)]
pub fn write(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// A JPEG with a pattern of waves.
#[allow(dead_code)]
pub fn jpeg(width: u32, height: u32, kind: u8) -> Vec<u8> {
    let image = image::RgbImage::from_fn(width, height, |x, y| {
        let wave = |by: u32| ((x * by + y * 5) as f32 / 9.0 + f32::from(kind)).sin();
        image::Rgb([3, 7, 11].map(|by| (127.5 + 127.0 * wave(by)) as u8))
    });
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, image::ImageFormat::Jpeg).unwrap();
    file.into_inner()
}
