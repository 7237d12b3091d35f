//! Cuts out and resizes, as Pillow does it.

use fast_image_resize::{
    FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer,
    images::{CroppedImage, Image, ImageRef},
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

/// Resizes to rasters whose size is given.
#[derive(Default)]
pub(crate) struct Resizing {
    resizer: Resizer,
}

impl Resizing {
    /// Shows what is in the rectangle, as if there were nothing around it.
    pub fn cut(
        &mut self,
        image: &Decoded,
        rectangle: Rectangle,
        interpolation: Interpolation,
        to: &mut Raster,
    ) -> Result<(), String> {
        let Rectangle {
            left,
            top,
            width,
            height,
        } = rectangle;
        let source = source(image)?;
        let source = CroppedImage::new(&source, left, top, width, height).map_err(text)?;
        let mut target = target(to)?;
        let resized = self.resizer.resize(&source, &mut target, &options(interpolation));
        resized.map_err(text)
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
        let (left, top) = (x * f64::from(resized.left), y * f64::from(resized.top));
        let (width, height) = (x * to.width as f64, y * to.height as f64);
        let options = options(interpolation).crop(left, top, width, height);
        let mut target = target(to)?;
        let resized = self.resizer.resize(&source(image)?, &mut target, &options);
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

fn source(image: &Decoded) -> Result<ImageRef<'_>, String> {
    ImageRef::new(image.width, image.height, &image.pixels, PixelType::U8x3).map_err(text)
}

fn target(raster: &mut Raster) -> Result<Image<'_>, String> {
    let (width, height) = (raster.width as u32, raster.height as u32);
    let pixels = raster.pixels.as_flattened_mut();
    Image::from_slice_u8(width, height, pixels, PixelType::U8x3).map_err(text)
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
            true => (0..width).flat_map(|y| (0..height).map(move |x| pixel(y, x))).collect(),
        };
        let (width, height) = if turned { (height, width) } else { (width, height) };
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
                let part = Rectangle { left, top, width, height };
                let image = decoded(&source, false);
                resizing.cut(&image, part, interpolation, &mut shown).unwrap();
            } else {
                let (turned, resize) = (left == 1, top);
                let evaluation = Evaluation { resize, interpolation };
                let loading = Loading { size: 16, evaluation, ..Loading::default() };
                let image = decoded(&source, turned);
                let middle = loading.middle(image.width, image.height);
                resizing.part(&image, middle, interpolation, &mut shown).unwrap();
            }
            let (largest, mean) = difference(&shown, &expected);
            println!("{row:?}: {largest} at most, {mean:.4} in the mean");
            assert!(largest <= 1, "{row:?}: {largest}");
        }
    }
}
