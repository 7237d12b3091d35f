//! Decodes image files.

#[cfg(test)]
mod golden;
mod jpeg;

use std::{
    fs::File,
    io::{Cursor, Read},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use image::{DynamicImage, ImageDecoder, ImageReader, Limits, RgbImage, metadata::Orientation};

use crate::error::{ImageError, ImagenetError, panic_message};

/// How files are decoded, and how large they may be.
///
/// The format is recognized by the content: JPEG (baseline and progressive; gray, RGB, CMYK and YCCK), PNG, WebP, BMP, or
/// the first frame of a GIF. All become RGB with 8 bits per channel: gray in three equal channels, palettes applied,
/// transparency dropped, 16 bits rounded to 8, CMYK converted as by Pillow, without colour profiles.
///
/// A truncated file is an error, and so is other damage that the decoder notices. It does not notice a JPEG that has its end
/// but lacks something before it; the missing part has one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// The largest number of pixels of an image, checked before memory is allocated. Decoding takes 3 bytes per pixel, and
    /// up to 12 more where pixels cannot be decoded line by line.
    pub max_pixels: u64,
    /// The largest number of bytes of a file.
    pub max_bytes: u64,
    /// Whether images are rotated by their EXIF orientation. torchvision and published results on ImageNet do not.
    pub orientation: bool,
}

impl Default for Decoding {
    fn default() -> Self {
        Self {
            max_pixels: 64_000_000,
            max_bytes: 256 << 20,
            orientation: false,
        }
    }
}

impl Decoding {
    fn check_size(&self, width: u32, height: u32) -> Result<(), ImageError> {
        let most = self.max_pixels;
        match u64::from(width) * u64::from(height) {
            0 => Err(ImageError::NoPixels),
            pixels if pixels > most => Err(ImageError::TooManyPixels {
                width,
                height,
                most,
            }),
            _ => Ok(()),
        }
    }
}

/// A decoded image, and memory for the next.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub width: u32,
    pub height: u32,
    /// Red, green and blue of each pixel, row by row.
    pub pixels: Vec<u8>,
    file: Vec<u8>,
}

impl Decoded {
    #[cfg(test)]
    pub fn of(width: u32, height: u32, pixels: &[u8]) -> Self {
        Self {
            width,
            height,
            pixels: pixels.to_vec(),
            file: Vec::new(),
        }
    }

    /// Reads and decodes a file, in place of the image before.
    pub fn read(&mut self, path: &Path, settings: &Decoding) -> Result<(), ImagenetError> {
        self.file.clear();
        let metadata = path.metadata().map_err(ImagenetError::unreadable(path))?;
        if !metadata.is_file() {
            // Opening a pipe would wait for a writer.
            return Err(ImagenetError::image(path)(ImageError::NotAFile));
        }
        let file = File::open(path).map_err(ImagenetError::unreadable(path))?;
        let mut file = file.take(settings.max_bytes + 1);
        let read = file.read_to_end(&mut self.file);
        read.map_err(ImagenetError::unreadable(path))?;
        self.decode(settings).map_err(ImagenetError::image(path))
    }

    fn decode(&mut self, settings: &Decoding) -> Result<(), ImageError> {
        let most = settings.max_bytes;
        match self.file.len() as u64 {
            0 => return Err(ImageError::Empty),
            bytes if bytes > most => return Err(ImageError::TooManyBytes(most)),
            _ => {}
        }
        let file = mem::take(&mut self.file);
        // Decoders should not panic, but damaged files may show that they do.
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            if jpeg::is_jpeg(&file) {
                self.decode_jpeg(&file, settings)
            } else {
                self.decode_other(&file, settings)
            }
        }));
        self.file = file;
        let panicked = |panic: &_| Err(ImageError::Panic(panic_message(panic).to_owned()));
        decoded.unwrap_or_else(|panic| panicked(&*panic))
    }

    fn decode_jpeg(&mut self, file: &[u8], settings: &Decoding) -> Result<(), ImageError> {
        let (width, height, orientation) = jpeg::decode(file, settings, &mut self.pixels)?;
        (self.width, self.height) = (width, height);
        if settings.orientation {
            let pixels = mem::take(&mut self.pixels);
            if let Some(image) = RgbImage::from_raw(width, height, pixels) {
                self.take(image, orientation);
            }
        }
        Ok(())
    }

    fn decode_other(&mut self, file: &[u8], settings: &Decoding) -> Result<(), ImageError> {
        let reader = ImageReader::new(Cursor::new(file)).with_guessed_format();
        let mut reader = reader.map_err(ImageError::decoder)?;
        if reader.format().is_none() {
            return Err(ImageError::UnknownFormat);
        }
        let mut limits = Limits::default();
        // Four channels of 16 bits, and as much again for the decoder.
        limits.max_alloc = Some(settings.max_pixels.saturating_mul(16).max(1 << 20));
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(ImageError::decoder)?;
        let (width, height) = decoder.dimensions();
        settings.check_size(width, height)?;
        // Invalid EXIF data are ignored.
        let orientation = (settings.orientation.then(|| decoder.orientation().ok())).flatten();
        let image = DynamicImage::from_decoder(decoder).map_err(ImageError::decoder)?;
        self.take(
            image.into_rgb8(),
            orientation.unwrap_or(Orientation::NoTransforms),
        );
        Ok(())
    }

    fn take(&mut self, image: RgbImage, orientation: Orientation) {
        let mut image = DynamicImage::ImageRgb8(image);
        image.apply_orientation(orientation);
        (self.width, self.height) = (image.width(), image.height());
        self.pixels = image.into_rgb8().into_raw();
    }
}
