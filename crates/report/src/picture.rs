//! A picture that becomes part of the page.

use imagesize::{ImageError, ImageType};

use crate::error::WrongPicture;

/// The bytes of a PNG, JPEG, GIF or WebP file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    bytes: Vec<u8>,
    media_type: &'static str,
    width: usize,
    height: usize,
}

impl Picture {
    /// A picture, from the bytes of a file.
    ///
    /// Looks at its header only: pixels are the browser's to decode.
    ///
    /// ```
    /// use stovepipe_report::Picture;
    ///
    /// let gif = b"GIF89a\x08\x00\x09\x00\x80\x00\x00;";
    /// let picture = Picture::new(gif.to_vec())?;
    /// assert_eq!(picture.size(), (8, 9));
    /// assert_eq!(picture.media_type(), "image/gif");
    /// assert_eq!(picture.bytes(), gif);
    /// assert!(Picture::new(b"a text".to_vec()).is_err());
    /// # Ok::<(), stovepipe_report::WrongPicture>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the file is of another format, or damaged where it should say how large it is.
    pub fn new(bytes: Vec<u8>) -> Result<Self, WrongPicture> {
        let format = imagesize::image_type(&bytes).map_err(|_| WrongPicture::Format)?;
        let media_type = match format {
            ImageType::Png => "image/png",
            ImageType::Jpeg => "image/jpeg",
            ImageType::Gif => "image/gif",
            ImageType::Webp => "image/webp",
            _ => return Err(WrongPicture::Format),
        };
        let header = |error: ImageError| WrongPicture::Header(error.to_string());
        let size = imagesize::blob_size(&bytes).map_err(header)?;
        Ok(Self {
            bytes,
            media_type,
            width: size.width,
            height: size.height,
        })
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the format is called, such as `image/png`.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// Width and height in pixels.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: Result<&str, &str>) {
        let picture = Picture::new(bytes.to_vec()).map_err(|error| error.to_string());
        let found = match &picture {
            Ok(picture) => Ok(picture.media_type()),
            Err(error) => Err(error.as_str()),
        };
        assert_eq!(found, expected, "{bytes:?}");
    }

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let none = Err("this is no PNG, JPEG, GIF or WebP file");
        check(b"", none);
        check(b"BM\0\0\0\0\0\0\0\0\0\0\0\0\0\0", none);
        check(b"<svg xmlns='http://www.w3.org/2000/svg'/>", none);
        check(b"<!doctype html><script>alert(1)</script>", none);
        check(b"GIF89a\x08\x00\x08\x00\x80\x00\x00;", Ok("image/gif"));
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\0\0\0\0";
        check(png, Ok("image/png"));
        assert!(matches!(
            Picture::new(png[..12].to_vec()),
            Err(WrongPicture::Header(_))
        ));
    }
}
