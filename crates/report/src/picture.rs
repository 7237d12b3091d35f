//! A picture that becomes part of the page.

use imagesize::ImageType;

use crate::error::PictureError;

/// The bytes of a PNG, JPEG, GIF or WebP file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    bytes: Vec<u8>,
    media_type: &'static str,
    size: (usize, usize),
}

impl Picture {
    /// A picture from the bytes of a file.
    ///
    /// Only the header is checked; browsers decode the pixels.
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
    /// # Ok::<(), stovepipe_report::PictureError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the file has another format, or its header does not give the picture's size.
    pub fn new(bytes: Vec<u8>) -> Result<Self, PictureError> {
        let media_type = match imagesize::image_type(&bytes) {
            Ok(ImageType::Png) => "image/png",
            Ok(ImageType::Jpeg) => "image/jpeg",
            Ok(ImageType::Gif) => "image/gif",
            Ok(ImageType::Webp) => "image/webp",
            _ => return Err(PictureError::Format),
        };
        let size = imagesize::blob_size(&bytes).map_err(PictureError::Header)?;
        Ok(Self {
            bytes,
            media_type,
            size: (size.width, size.height),
        })
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The format's media type, such as `image/png`.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// Width and height in pixels.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognized_by_their_first_bytes() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\0\0\0\0";
        let unknown = Err("not a PNG, JPEG, GIF or WebP file".to_owned());
        for (bytes, expected) in [
            (&b""[..], unknown.clone()),
            (b"BM\0\0\0\0\0\0\0\0\0\0\0\0\0\0", unknown.clone()),
            (
                b"<svg xmlns='http://www.w3.org/2000/svg'/>",
                unknown.clone(),
            ),
            (b"<!doctype html><script>alert(1)</script>", unknown),
            (b"GIF89a\x08\x00\x08\x00\x80\x00\x00;", Ok("image/gif")),
            (png, Ok("image/png")),
        ] {
            let found = Picture::new(bytes.to_vec());
            let found = (found.as_ref()).map(Picture::media_type);
            assert_eq!(found.map_err(ToString::to_string), expected, "{bytes:?}");
        }
        let cut = Picture::new(png[..12].to_vec());
        assert!(matches!(cut, Err(PictureError::Header(_))));
    }
}
