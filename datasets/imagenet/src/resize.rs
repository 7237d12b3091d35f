//! Crops and resizes with Pillow's arithmetic.

use std::ops::Range;

// Typed images, so that only the code for this kind of pixel is compiled.
use fast_image_resize::{
    FilterType, ImageView, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedCroppedImage, TypedImage, TypedImageRef},
    pixels::U8x3,
};

use crate::{ImageError, decode::Decoded, raster::Raster};

/// The interpolation of resizing, with antialiasing where an image becomes smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// Linear interpolation, torchvision's default.
    #[default]
    Bilinear,
    /// Cubic polynomials with a = −0.5, as in Pillow.
    Bicubic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rectangle {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

impl Rectangle {
    fn whole(width: u32, height: u32) -> Self {
        Self {
            left: 0,
            top: 0,
            width,
            height,
        }
    }
}

/// Resizes to rasters of a given size, with memory for the next.
///
/// Like Pillow, it resizes the width first and then the height; one value in a hundred is rounded differently. The resizer
/// alone would begin with the height, and values would differ by up to 3.
#[derive(Default)]
pub(crate) struct Resizing {
    resizer: Resizer,
    /// The image after resizing its width, with only the rows that are needed.
    narrow: Vec<u8>,
}

/// The longest side of a part of an image; no JPEG is longer. A part with millions of rows or columns would take gigabytes.
const LONGEST: f64 = 65_536.0;

/// The part of a side that is shown: its begin and its length in pixels.
type Extent = (f64, f64);

impl Resizing {
    /// Resizes a part of the image, without the pixels around it.
    pub fn cut(
        &mut self,
        image: &Decoded,
        rectangle: Rectangle,
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), ImageError> {
        let whole = |length: u32| (0.0, f64::from(length));
        let extents = [whole(rectangle.width), whole(rectangle.height)];
        self.resize(&source(image, rectangle)?, extents, interpolation, to)
    }

    /// Resizes the image to the rectangle's `width` and `height`, and crops at its `left` and `top`. Only the crop is computed.
    pub fn part(
        &mut self,
        image: &Decoded,
        resized: Rectangle,
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), ImageError> {
        let x = f64::from(image.width) / f64::from(resized.width);
        let y = f64::from(image.height) / f64::from(resized.height);
        let across = extent(x, resized.left, to.width, image.width);
        let down = extent(y, resized.top, to.height, image.height);
        let whole = Rectangle::whole(image.width, image.height);
        self.resize(&source(image, whole)?, [across, down], interpolation, to)
    }

    fn resize(
        &mut self,
        source: &ImagePart<'_>,
        [across, down]: [Extent; 2],
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), ImageError> {
        let (length, most) = (across.1.max(down.1), LONGEST);
        if length > most {
            return Err(ImageError::TooLong { length, most });
        }
        let options = options(interpolation);
        let needed = rows(down, to.height, interpolation, source.height());
        let (width, height) = (to.width as u32, needed.end - needed.start);
        let top = f64::from(needed.start);
        self.narrow.resize(3 * to.width * height as usize, 0);
        let narrow = target(width, height, &mut self.narrow)?;
        let part = options.crop(across.0, top, across.1, f64::from(height));
        resize(&mut self.resizer, source, narrow, &part)?;
        let narrow = part_of(
            &self.narrow,
            [width, height],
            Rectangle::whole(width, height),
        )?;
        let target = target(width, to.height as u32, to.pixels.as_flattened_mut())?;
        let part = options.crop(0.0, down.0 - top, f64::from(width), down.1);
        resize(&mut self.resizer, &narrow, target, &part)
    }
}

/// The part of a side of `length` pixels that is shown by `pixels` pixels from index `begin`, each as long as `each` pixels of
/// the side.
fn extent(each: f64, begin: u32, pixels: usize, length: u32) -> Extent {
    let begin = each * f64::from(begin);
    // Rounding must not lead beyond the end.
    let rest = f64::from(length) - begin;
    (begin, (each * pixels as f64).min(rest))
}

/// The rows needed to show `down` in `shown` rows: its own rows, and those around it in reach of the filter.
///
/// To keep all rows of an image one pixel wide and a million high, stretched to the raster's width, would take gigabytes.
fn rows(down: Extent, shown: usize, interpolation: Interpolation, height: u32) -> Range<u32> {
    let (begin, length) = down;
    let reach = match interpolation {
        Interpolation::Bilinear => 1.0,
        Interpolation::Bicubic => 2.0,
    };
    // One more for rounding.
    let beside = reach * (length / shown as f64).max(1.0) + 1.0;
    let first = (begin - beside).max(0.0) as u32;
    let end = (begin + length + beside).ceil().min(f64::from(height)) as u32;
    first..end
}

fn options(interpolation: Interpolation) -> ResizeOptions {
    let filter = match interpolation {
        Interpolation::Bilinear => FilterType::Bilinear,
        Interpolation::Bicubic => FilterType::CatmullRom,
    };
    ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter))
}

/// The one kind of source and of target: the library's code is compiled anew for each pair, which takes seconds.
fn resize(
    resizer: &mut Resizer,
    source: &ImagePart<'_>,
    mut target: TypedImage<'_, U8x3>,
    options: &ResizeOptions,
) -> Result<(), ImageError> {
    let resized = resizer.resize_typed(source, &mut target, options);
    resized.map_err(ImageError::resize)
}

type ImagePart<'a> = TypedCroppedImage<'a, TypedImageRef<'a, U8x3>>;

fn source(image: &Decoded, part: Rectangle) -> Result<ImagePart<'_>, ImageError> {
    part_of(&image.pixels, [image.width, image.height], part)
}

fn part_of(pixels: &[u8], size: [u32; 2], part: Rectangle) -> Result<ImagePart<'_>, ImageError> {
    let whole = TypedImageRef::from_buffer(size[0], size[1], pixels);
    let Rectangle {
        left,
        top,
        width,
        height,
    } = part;
    TypedCroppedImage::new(whole.map_err(ImageError::resize)?, left, top, width, height)
        .map_err(ImageError::resize)
}

fn target(width: u32, height: u32, pixels: &mut [u8]) -> Result<TypedImage<'_, U8x3>, ImageError> {
    TypedImage::from_buffer(width, height, pixels).map_err(ImageError::resize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Loading,
        golden::{difference, picture, tiles},
    };

    fn decoded(raster: &Raster, transposed: bool) -> Decoded {
        let (width, height) = (raster.width, raster.height);
        if !transposed {
            return Decoded::of(width as u32, height as u32, raster.pixels.as_flattened());
        }
        let row = |y: usize| raster.pixels.iter().skip(y).step_by(width);
        let pixels: Vec<_> = (0..width).flat_map(row).copied().collect();
        Decoded::of(height as u32, width as u32, pixels.as_flattened())
    }

    #[test]
    fn crops_equal_those_of_torchvision() {
        let source = picture("source.png");
        for (row, expected) in tiles("crops", 16) {
            let interpolation = match &*row[1] {
                "bicubic" => Interpolation::Bicubic,
                _ => Interpolation::Bilinear,
            };
            let [left, top, width, height] = [2, 3, 4, 5].map(|field| row[field].parse().unwrap());
            let (mut resizing, mut shown) = (Resizing::default(), Raster::new(16, 16));
            let resized = if row[0] == "cut" {
                let part = Rectangle {
                    left,
                    top,
                    width,
                    height,
                };
                resizing.cut(&decoded(&source, false), part, interpolation, &mut shown)
            } else {
                let (transposed, resize) = (left == 1, top);
                let image = decoded(&source, transposed);
                let loading = loading(16, resize, interpolation);
                let centre = loading.centre_crop(image.width, image.height);
                resizing.part(&image, centre, interpolation, &mut shown)
            };
            resized.unwrap();
            let (largest, mean) = difference(&shown, &expected);
            println!("{row:?}: {largest} at most, {mean:.4} in the mean");
            // Weights have fewer bits than Pillow's.
            assert!(largest <= 1 && mean < 0.02, "{row:?}: {largest} {mean}");
        }
    }

    fn loading(size: u32, resize: u32, interpolation: Interpolation) -> Loading {
        let mut loading = Loading::default();
        (loading.size, loading.evaluation.resize) = (size, resize);
        loading.evaluation.interpolation = interpolation;
        loading
    }

    fn by_all_rows(
        image: &Decoded,
        [across, down]: [Extent; 2],
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
        #[test]
        fn rows_out_of_reach_of_the_filter_do_not_matter(
            (width, height) in (1..200_u32, 1..200_u32), size in 1..40_usize, more in 0..20_u32, bicubic: bool, seed: u64,
        ) {
            let value = |place: u64| (place.wrapping_mul(seed | 1) >> 40) as u8;
            let pixels: Vec<_> = (0..3 * u64::from(width * height)).map(value).collect();
            let image = Decoded::of(width, height, &pixels);
            let interpolation = if bicubic { Interpolation::Bicubic } else { Interpolation::Bilinear };
            let loading = loading(size as u32, size as u32 + more, interpolation);
            let centre = loading.centre_crop(width, height);
            let (mut shown, mut expected) = (Raster::new(size, size), Raster::new(size, size));
            Resizing::default().part(&image, centre, interpolation, &mut shown).unwrap();
            let part = |of: u32, resized: u32, begin| extent(f64::from(of) / f64::from(resized), begin, size, of);
            let extents = [part(width, centre.width, centre.left), part(height, centre.height, centre.top)];
            by_all_rows(&image, extents, interpolation, &mut expected);
            prop_assert!(shown == expected);
        }
    }
}
