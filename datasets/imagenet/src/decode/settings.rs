use crate::ImageError;

/// How files are decoded, and how large they may be.
///
/// The format is recognized by the content: JPEG (baseline and progressive; gray, RGB, CMYK and YCCK), PNG, WebP, BMP, or
/// the first frame of a GIF. All become RGB with 8 bits per channel: gray in three equal channels, palettes applied,
/// transparency dropped, 16 bits rounded to 8, CMYK converted as by Pillow, without colour profiles.
///
/// A truncated file is an error, and so is other damage that the decoder notices. It does not notice a JPEG that has its end
/// but lacks something before it; the missing part has one colour.
///
/// ```
/// use stovepipe_imagenet::Decoding;
///
/// let large = Decoding { max_pixels: 200_000_000, ..Decoding::default() };
/// # let _ = large;
/// ```
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
    pub(super) fn check_size(&self, width: u32, height: u32) -> Result<(), ImageError> {
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
