//! JPEGs, with the decoder of `image` in its strict mode: `image` shows missing pixels as gray.

use image::metadata::Orientation;
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::Decoding;
use crate::ImageError;

pub(super) fn is_jpeg(file: &[u8]) -> bool {
    file.starts_with(&[0xff, 0xd8, 0xff])
}

/// Decodes into `pixels`. Returns width, height and orientation.
pub(super) fn decode(
    file: &[u8],
    settings: &Decoding,
    pixels: &mut Vec<u8>,
) -> Result<(u32, u32, Orientation), ImageError> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    // Other bytes are allowed between headers, but not among pixels.
    let lenient = options.set_strict_mode(false);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), lenient);
    decoder.decode_headers().map_err(ImageError::decoder)?;
    let (width, height) = decoder.dimensions().unwrap_or((0, 0));
    let (width, height) = (width as u32, height as u32);
    settings.check_size(width, height)?;
    if !has_end(file) {
        return Err(ImageError::Truncated);
    }
    decoder.set_options(options.set_strict_mode(true));
    let bytes = decoder.output_buffer_size().ok_or(ImageError::NoPixels)?;
    pixels.resize(bytes, 0);
    decoder.decode_into(pixels).map_err(ImageError::decoder)?;
    let exif = decoder.exif();
    let orientation = exif.and_then(|exif| Orientation::from_exif_chunk(exif));
    Ok((
        width,
        height,
        orientation.unwrap_or(Orientation::NoTransforms),
    ))
}

/// Whether the image has its end marker. Segments are skipped, since a thumbnail in one may have an end of its own.
fn has_end(file: &[u8]) -> bool {
    // The usual case. Pixels never look like an end marker.
    if file.ends_with(&[0xff, 0xd9]) {
        return true;
    }
    let mut rest = file.get(2..).unwrap_or_default();
    loop {
        // Skips to the next marker: a byte after 255, except 0 (an escaped 255), 208 to 215 (restart points) and 255
        // (padding).
        let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
        let Some(place) = rest.windows(2).position(is_marker) else {
            return false;
        };
        if rest[place + 1] == 0xd9 {
            return true;
        }
        let segment = &rest[place + 2..];
        let length = segment.first_chunk();
        let length = length.map_or(0, |length| u16::from_be_bytes(*length));
        rest = segment.get(usize::from(length)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_in_a_segment_does_not_count() {
        let thumbnail = b"\xff\xd8\xff\xe1\x00\x04\xff\xd9"; // in a segment
        let pixels = b"\xff\xda\x00\x02ab\xff\x00\xff\xd0c";
        let begin = [&thumbnail[..], pixels].concat();
        assert!(!has_end(&begin));
        assert!(has_end(&[&begin[..], b"\xff\xff\xd9 \xff\xda"].concat()));
        let without = [
            &b""[..],
            b"\xff\xd8",
            b"\xff\xd8\xff",
            b"\xff\xd8\xff\xee\x00",
            b"\xff\xd8\xff\xee\x00\x00",
            b"\xff\xd8\xff\xee\xff\xff\xff\xd9\x00",
        ];
        for file in without {
            assert!(!has_end(file));
        }
    }
}
