//! Files to pixels.

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

use crate::{ImagenetError, panic_message};

/// What of a file is decoded, and how large it may be.
///
/// What a file is, its content says, whatever its name: JPEG (baseline and progressive; gray, RGB, CMYK and YCCK), PNG, WebP,
/// BMP, or the first frame of a GIF. All become RGB of 8 bits a channel: gray in three equal channels, palettes looked up,
/// transparency dropped, 16 bits rounded to 8, CMYK as Pillow converts it, without colour profiles.
///
/// A file that is cut short is an error, also where other decoders would fill up with gray. So is other damage that the decoder
/// notices. It does not always: where a JPEG has its end but lacks something before, or its header claims more pixels than
/// follow, what is missing comes out in one colour, as from other decoders.
///
/// # Example
///
/// ```
/// use stovepipe_imagenet::Decoding;
///
/// let large = Decoding { max_pixels: 200_000_000, ..Decoding::default() };
/// # let _ = large;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// The most pixels that an image may have; one that claims more is an error before any is allocated. Decoding takes
    /// 3 bytes a pixel, and up to 12 more where pixels cannot be decoded line by line.
    pub max_pixels: u64,
    /// The most bytes that a file may have.
    pub max_bytes: u64,
    /// Whether images are turned as their EXIF data say. torchvision does not, and neither do published results on
    /// ImageNet, so this is off by default.
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

    /// Reads and decodes a file, in place of what was decoded before.
    pub fn read(&mut self, path: &Path, settings: &Decoding) -> Result<(), ImagenetError> {
        self.file.clear();
        let metadata = path.metadata().map_err(ImagenetError::unreadable(path))?;
        if !metadata.is_file() {
            // To open a pipe would be to wait for someone who writes into it.
            return Err(ImagenetError::Image {
                path: path.to_owned(),
                reason: "is no file but a folder, a pipe or a device".to_owned(),
            });
        }
        let file = File::open(path).map_err(ImagenetError::unreadable(path))?;
        let read = file
            .take(settings.max_bytes + 1)
            .read_to_end(&mut self.file);
        read.map_err(ImagenetError::unreadable(path))?;
        self.decode(settings)
            .map_err(|reason| ImagenetError::Image {
                path: path.to_owned(),
                reason,
            })
    }

    fn decode(&mut self, settings: &Decoding) -> Result<(), String> {
        match self.file.len() as u64 {
            0 => return Err("is empty".to_owned()),
            bytes if bytes > settings.max_bytes => {
                return Err(format!("has more than {} bytes", settings.max_bytes));
            }
            _ => {}
        }
        let file = mem::take(&mut self.file);
        // Decoders are written for any bytes, but not proven.
        let decoded = catch_unwind(AssertUnwindSafe(|| match jpeg::is_jpeg(&file) {
            true => jpeg::decode(&file, settings, self),
            false => self.decode_other(&file, settings),
        }));
        self.file = file;
        decoded
            .unwrap_or_else(|panic| Err(format!("the decoder gave up: {}", panic_message(&*panic))))
    }

    fn decode_other(&mut self, file: &[u8], settings: &Decoding) -> Result<(), String> {
        let reader = ImageReader::new(Cursor::new(file)).with_guessed_format();
        let mut reader = reader.map_err(|error| error.to_string())?;
        if reader.format().is_none() {
            return Err("is no image of a known kind (JPEG, PNG, WebP, BMP, GIF)".to_owned());
        }
        let mut limits = Limits::default();
        // Four channels of 16 bits, and as much again for a decoder's own.
        limits.max_alloc = Some(settings.max_pixels.saturating_mul(16).max(1 << 20));
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(|error| error.to_string())?;
        let (width, height) = decoder.dimensions();
        check_size(width, height, settings)?;
        let orientation = match settings.orientation {
            // EXIF data that cannot be read say nothing.
            true => decoder.orientation().unwrap_or(Orientation::NoTransforms),
            false => Orientation::NoTransforms,
        };
        let image = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
        self.take(image.into_rgb8(), orientation);
        Ok(())
    }

    /// Turns what has been decoded.
    fn turn(&mut self, orientation: Orientation) {
        let pixels = mem::take(&mut self.pixels);
        if let Some(image) = RgbImage::from_raw(self.width, self.height, pixels) {
            self.take(image, orientation);
        }
    }

    fn take(&mut self, image: RgbImage, orientation: Orientation) {
        let mut image = DynamicImage::ImageRgb8(image);
        image.apply_orientation(orientation);
        (self.width, self.height) = (image.width(), image.height());
        self.pixels = image.into_rgb8().into_raw();
    }
}

fn check_size(width: u32, height: u32, settings: &Decoding) -> Result<(), String> {
    let most = settings.max_pixels;
    if width == 0 || height == 0 {
        Err(format!("has no pixels: {width}×{height}"))
    } else if u64::from(width) * u64::from(height) > most {
        Err(format!(
            "claims {width}×{height} pixels, more than the {most} that an image may have"
        ))
    } else {
        Ok(())
    }
}
