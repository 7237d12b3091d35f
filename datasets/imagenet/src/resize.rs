//! Cuts out and resizes, as Pillow does it.

use std::ops::Range;

// Typed throughout: else code for every kind of pixel would be compiled.
use fast_image_resize::{
    FilterType, ImageView, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedCroppedImage, TypedImage, TypedImageRef},
    pixels::U8x3,
};

use crate::{decode::Decoded, raster::Raster};

/// How pixels between pixels are found, with antialiasing where an image becomes smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// Triangles, torchvision's default.
    #[default]
    Bilinear,
    /// Cubic polynomials with a = −0.5, as in Pillow.
    Bicubic,
}

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rectangle {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// Resizes to rasters whose size is given: rows first and then columns, as Pillow does, whose values these are but for the
/// rounding of one in a hundred. In one go, columns would come first, and values differ by up to 3.
#[derive(Default)]
pub(crate) struct Resizing {
    resizer: Resizer,
    /// As wide as the raster, as high as what is shown and what its edges are made of.
    narrow: Vec<u8>,
}

/// The longest side of a part of an image that is shown; no JPEG is longer. A part of millions of rows or columns, which only odd
/// settings cut out of only odd images, would take gigabytes on the way.
const LONGEST: f64 = 65_536.0;

/// What of a side is shown, in pixels: where it begins, and how long it is.
type Span = (f64, f64);

impl Resizing {
    /// Shows what is in the rectangle, as if there were nothing around it.
    pub fn cut(
        &mut self,
        image: &Decoded,
        rectangle: Rectangle,
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), String> {
        let source = source(image, rectangle)?;
        let whole = |length: u32| (0.0, f64::from(length));
        let spans = [whole(rectangle.width), whole(rectangle.height)];
        self.resize(&source, spans, interpolation, to)
    }

    /// Shows what is at `left` and `top` if the image is resized to `width` and `height`. Only that is computed.
    pub fn part(
        &mut self,
        image: &Decoded,
        resized: Rectangle,
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), String> {
        let x = f64::from(image.width) / f64::from(resized.width);
        let y = f64::from(image.height) / f64::from(resized.height);
        let across = span(x, resized.left, to.width, image.width);
        let down = span(y, resized.top, to.height, image.height);
        let whole = Rectangle {
            left: 0,
            top: 0,
            width: image.width,
            height: image.height,
        };
        self.resize(&source(image, whole)?, [across, down], interpolation, to)
    }

    fn resize(
        &mut self,
        source: &Source<'_>,
        [across, down]: [Span; 2],
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), String> {
        check_length(across.1.max(down.1))?;
        let options = options(interpolation);
        let needed = rows(down, to.height, interpolation, source.height());
        let (width, height) = (to.width as u32, needed.end - needed.start);
        let top = f64::from(needed.start);
        self.narrow.resize(3 * to.width * height as usize, 0);
        let mut narrow = target(width, height, &mut self.narrow)?;
        let part = options.crop(across.0, top, across.1, f64::from(height));
        let resized = self.resizer.resize_typed(source, &mut narrow, &part);
        resized.map_err(text)?;
        let mut target = target(width, to.height as u32, to.pixels.as_flattened_mut())?;
        let part = options.crop(0.0, down.0 - top, f64::from(width), down.1);
        let resized = self.resizer.resize_typed(&narrow, &mut target, &part);
        resized.map_err(text)
    }
}

/// What of a side of `length` pixels is shown by `pixels` pixels, the first of which has number `begin` and each of which is
/// worth `each` of the side's.
fn span(each: f64, begin: u32, pixels: usize, length: u32) -> Span {
    let begin = each * f64::from(begin);
    // Where all is shown, rounding must not lead beyond the end.
    let rest = f64::from(length) - begin;
    (begin, (each * pixels as f64).min(rest))
}

/// The rows that a span of `shown` rows is made of: its own, and as many beside them as the filter reaches.
///
/// All others are left alone. An image that is one pixel wide and a million high is shown by few of them, and to keep all,
/// stretched to the raster's width, would take gigabytes.
fn rows(down: Span, shown: usize, interpolation: Interpolation, height: u32) -> Range<u32> {
    let (begin, length) = down;
    let reach = match interpolation {
        Interpolation::Bilinear => 1.0,
        Interpolation::Bicubic => 2.0,
    };
    // One more, so that rounding counts for nothing.
    let beside = reach * (length / shown as f64).max(1.0) + 1.0;
    let first = (begin - beside).max(0.0) as u32;
    let end = (begin + length + beside).ceil().min(f64::from(height)) as u32;
    first..end
}

fn check_length(longest: f64) -> Result<(), String> {
    match longest > LONGEST {
        true => Err(format!(
            "cannot be shown: the part to be seen is {longest:.0} pixels long, and may be {LONGEST}"
        )),
        false => Ok(()),
    }
}

fn options(interpolation: Interpolation) -> ResizeOptions {
    let filter = match interpolation {
        Interpolation::Bilinear => FilterType::Bilinear,
        Interpolation::Bicubic => FilterType::CatmullRom,
    };
    ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter))
}

/// A part of an image.
type Source<'a> = TypedCroppedImage<'a, TypedImageRef<'a, U8x3>>;

fn source(image: &Decoded, part: Rectangle) -> Result<Source<'_>, String> {
    let whole = TypedImageRef::from_buffer(image.width, image.height, &image.pixels);
    let Rectangle {
        left,
        top,
        width,
        height,
    } = part;
    TypedCroppedImage::new(whole.map_err(text)?, left, top, width, height).map_err(text)
}

fn target(width: u32, height: u32, pixels: &mut [u8]) -> Result<TypedImage<'_, U8x3>, String> {
    TypedImage::from_buffer(width, height, pixels).map_err(text)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Evaluation, Loading,
        golden::{difference, picture, tiles},
    };

    fn decoded(raster: &Raster, turned: bool) -> Decoded {
        let (width, height) = (raster.width, raster.height);
        let pixel = |x: usize, y: usize| raster.pixels[y * width + x];
        let pixels: Vec<[u8; 3]> = match turned {
            false => raster.pixels.clone(),
            true => (0..width)
                .flat_map(|y| (0..height).map(move |x| pixel(y, x)))
                .collect(),
        };
        let (width, height) = if turned {
            (height, width)
        } else {
            (width, height)
        };
        Decoded::of(width as u32, height as u32, pixels.as_flattened())
    }

    #[test]
    fn crops_are_torchvisions() {
        let source = picture("source.png");
        for (row, expected) in tiles("crops", 16) {
            let interpolation = match &*row[1] {
                "bicubic" => Interpolation::Bicubic,
                _ => Interpolation::Bilinear,
            };
            let [left, top, width, height] = [2, 3, 4, 5].map(|field| row[field].parse().unwrap());
            let (mut resizing, mut shown) = (Resizing::default(), Raster::new(16, 16));
            if row[0] == "cut" {
                let part = Rectangle {
                    left,
                    top,
                    width,
                    height,
                };
                let image = decoded(&source, false);
                resizing
                    .cut(&image, part, interpolation, &mut shown)
                    .unwrap();
            } else {
                let (turned, resize) = (left == 1, top);
                let evaluation = Evaluation {
                    resize,
                    interpolation,
                };
                let loading = Loading {
                    size: 16,
                    evaluation,
                    ..Loading::default()
                };
                let image = decoded(&source, turned);
                let middle = loading.middle(image.width, image.height);
                resizing
                    .part(&image, middle, interpolation, &mut shown)
                    .unwrap();
            }
            let (largest, mean) = difference(&shown, &expected);
            println!("{row:?}: {largest} at most, {mean:.4} in the mean");
            // Weights have fewer bits than Pillow's.
            assert!(largest <= 1 && mean < 0.02, "{row:?}: {largest} {mean}");
        }
    }

    /// The part that is shown when all rows are kept on the way.
    fn by_all_rows(
        image: &Decoded,
        [across, down]: [Span; 2],
        interpolation: Interpolation,
        to: &mut Raster,
    ) {
        let (options, height) = (options(interpolation), f64::from(image.height));
        let mut kept = vec![0; 3 * to.width * image.height as usize];
        let mut narrow = target(to.width as u32, image.height, &mut kept).unwrap();
        let source = TypedImageRef::from_buffer(image.width, image.height, &image.pixels).unwrap();
        let part = options.crop(across.0, 0.0, across.1, height);
        let mut resizer = Resizer::default();
        resizer.resize_typed(&source, &mut narrow, &part).unwrap();
        let (width, height) = (to.width as u32, to.height as u32);
        let mut shown = target(width, height, to.pixels.as_flattened_mut()).unwrap();
        let part = options.crop(0.0, down.0, f64::from(width), down.1);
        resizer.resize_typed(&narrow, &mut shown, &part).unwrap();
    }

    proptest! {
        /// Rows that are left out change no bit.
        #[test]
        fn rows_beyond_the_filters_reach_count_for_nothing(
            (width, height) in (1..200_u32, 1..200_u32), size in 1..40_usize, more in 0..20_u32, bicubic: bool, seed: u64,
        ) {
            let value = |place: u64| (place.wrapping_mul(seed | 1) >> 40) as u8;
            let pixels: Vec<_> = (0..3 * u64::from(width * height)).map(value).collect();
            let image = Decoded::of(width, height, &pixels);
            let interpolation = if bicubic { Interpolation::Bicubic } else { Interpolation::Bilinear };
            let evaluation = Evaluation { resize: size as u32 + more, interpolation };
            let loading = Loading { size: size as u32, evaluation, ..Loading::default() };
            let middle = loading.middle(width, height);
            let (mut shown, mut expected) = (Raster::new(size, size), Raster::new(size, size));
            Resizing::default().part(&image, middle, interpolation, &mut shown).unwrap();
            let part = |of: u32, resized: u32, begin| span(f64::from(of) / f64::from(resized), begin, size, of);
            let spans = [part(width, middle.width, middle.left), part(height, middle.height, middle.top)];
            by_all_rows(&image, spans, interpolation, &mut expected);
            prop_assert!(shown == expected);
        }
    }
}
