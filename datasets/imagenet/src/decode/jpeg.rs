//! JPEGs, by the decoder that `image` uses, which it runs so that what is cut off comes out gray.

use image::metadata::Orientation;
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{Decoded, Decoding, check_size};

pub(super) fn is_jpeg(file: &[u8]) -> bool {
    file.starts_with(&[0xff, 0xd8, 0xff])
}

pub(super) fn decode(file: &[u8], settings: &Decoding, into: &mut Decoded) -> Result<(), String> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    // Headers may have what is between them; among pixels, damage that the decoder notices is an error. It makes up what
    // is missing before the end: that far it does not look.
    let (lenient, strict) = (
        options.set_strict_mode(false),
        options.set_strict_mode(true),
    );
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), lenient);
    decoder
        .decode_headers()
        .map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions().unwrap_or((0, 0));
    let (width, height) = (width as u32, height as u32);
    check_size(width, height, settings)?;
    if !has_end(file) {
        return Err("is cut short: the JPEG has no end".to_owned());
    }
    decoder.set_options(strict);
    let bytes = decoder.output_buffer_size().ok_or("has no pixels")?;
    into.pixels.resize(bytes, 0);
    decoder
        .decode_into(&mut into.pixels)
        .map_err(|error| error.to_string())?;
    (into.width, into.height) = (width, height);
    if settings.orientation {
        let said = decoder
            .exif()
            .and_then(|exif| Orientation::from_exif_chunk(exif));
        into.turn(said.unwrap_or(Orientation::NoTransforms));
    }
    Ok(())
}

/// Whether the image's end is there, by the markers between its segments: a thumbnail within one may have an end of its own.
fn has_end(file: &[u8]) -> bool {
    // Mostly so. Pixels cannot look like it, and where a thumbnail's end is the last there is, no pixels follow.
    if file.ends_with(&[0xff, 0xd9]) {
        return true;
    }
    let mut rest = file.get(2..).unwrap_or_default();
    loop {
        // Pixels, or what else lies before the next marker. A marker is any byte after 255 but 0, which stands for 255
        // itself, 208 to 215, which are points to restart at, and 255, which fills.
        let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
        let Some(place) = rest.windows(2).position(is_marker) else {
            return false;
        };
        if rest[place + 1] == 0xd9 {
            return true;
        }
        let segment = &rest[place + 2..];
        let length = segment
            .first_chunk()
            .map(|length| u16::from_be_bytes(*length));
        rest = segment
            .get(usize::from(length.unwrap_or(0))..)
            .unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_from_one_in_a_segment() {
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
