//! Shears, translations and rotations to the nearest pixel; pixels from outside are black.

use crate::raster::Raster;

/// Moves each row to the left by `factor` times its distance from the upper edge.
pub(super) fn shear_x(image: &mut Raster, factor: f64) {
    affine(image, [1.0, factor, 0.0, 0.0, 1.0, 0.0]);
}

/// Moves each column up by `factor` times its distance from the left edge.
pub(super) fn shear_y(image: &mut Raster, factor: f64) {
    affine(image, [1.0, 0.0, 0.0, factor, 1.0, 0.0]);
}

/// Moves the image to the right by whole pixels.
pub(super) fn translate_x(image: &mut Raster, pixels: f64) {
    affine(image, [1.0, 0.0, -pixels.trunc(), 0.0, 1.0, 0.0]);
}

/// Moves the image down by whole pixels.
pub(super) fn translate_y(image: &mut Raster, pixels: f64) {
    affine(image, [1.0, 0.0, 0.0, 0.0, 1.0, -pixels.trunc()]);
}

/// Rotates around the centre, counterclockwise.
pub(super) fn rotate(image: &mut Raster, degrees: f64) {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (x, y) = (image.width as f64 / 2.0, image.height as f64 / 2.0);
    let (c, f) = (x - cos * x + sin * y, y - sin * x - cos * y);
    affine(image, [cos, -sin, c, sin, cos, f]);
}

/// The pixel at (x, y) becomes the one at (ax + by + c, dx + ey + f).
fn affine(image: &mut Raster, [a, b, c, d, e, f]: [f64; 6]) {
    let from = image.clone();
    let (width, height) = (image.width as f64, image.height as f64);
    for (y, row) in image.pixels.chunks_exact_mut(from.width).enumerate() {
        let y = y as f64 + 0.5;
        for (x, pixel) in row.iter_mut().enumerate() {
            let x = x as f64 + 0.5;
            let (column, line) = ((a * x + b * y + c).floor(), (d * x + e * y + f).floor());
            *pixel = if (0.0..width).contains(&column) && (0.0..height).contains(&line) {
                from.pixels[line as usize * from.width + column as usize]
            } else {
                [0; 3]
            };
        }
    }
}
