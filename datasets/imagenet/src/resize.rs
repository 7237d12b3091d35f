//! Cuts out and resizes, as Pillow does it.

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
    /// As wide as the raster, as high as what is shown.
    narrow: Vec<u8>,
}

/// From where to where along a side, in pixels.
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
        let across = (x * f64::from(resized.left), x * to.width as f64);
        let down = (y * f64::from(resized.top), y * to.height as f64);
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
        let options = options(interpolation);
        let (width, height) = (to.width as u32, source.height());
        self.narrow.resize(3 * to.width * height as usize, 0);
        let mut narrow = target(width, height, &mut self.narrow)?;
        let rows = options.crop(across.0, 0.0, across.1, f64::from(height));
        let resized = self.resizer.resize_typed(source, &mut narrow, &rows);
        resized.map_err(text)?;
        let mut target = target(width, to.height as u32, to.pixels.as_flattened_mut())?;
        let columns = options.crop(0.0, down.0, f64::from(width), down.1);
        let resized = self.resizer.resize_typed(&narrow, &mut target, &columns);
        resized.map_err(text)
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
}
