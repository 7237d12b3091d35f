//! Brightness, contrast, saturation, hue and sharpness, with Pillow's arithmetic.

use crate::raster::{Raster, gray};

/// Darker below 1, brighter above.
pub(super) fn brightness(image: &mut Raster, factor: f64) {
    image.map(|value| blend(0, value, factor));
}

/// Less contrast below 1, more above.
pub(super) fn contrast(image: &mut Raster, factor: f64) {
    let grays = image.pixels.iter().map(|&pixel| u64::from(gray(pixel)));
    let mean = grays.sum::<u64>() as f64 / image.pixels.len().max(1) as f64;
    let mean = (mean + 0.5) as u8;
    image.map(|value| blend(mean, value, factor));
}

/// Less saturated below 1, more above.
pub(super) fn saturation(image: &mut Raster, factor: f64) {
    for pixel in &mut image.pixels {
        let gray = gray(*pixel);
        *pixel = pixel.map(|value| blend(gray, value, factor));
    }
}

/// Smoother below 1, sharper above.
pub(super) fn sharpness(image: &mut Raster, factor: f64) {
    let smooth = smoothed(image);
    for (pixel, smooth) in image.pixels.iter_mut().zip(&smooth.pixels) {
        for (value, &smooth) in pixel.iter_mut().zip(smooth) {
            *value = blend(smooth, *value, factor);
        }
    }
}

/// Rotates hues by `shift`, from −½ to ½.
pub(super) fn hue(image: &mut Raster, shift: f64) {
    let shift = (shift * 255.0) as i32 as u8;
    for pixel in &mut image.pixels {
        let [hue, saturation, value] = to_hsv(*pixel);
        *pixel = from_hsv([hue.wrapping_add(shift), saturation, value]);
    }
}

/// Linear interpolation, and extrapolation for factors above 1.
fn blend(from: u8, to: u8, factor: f64) -> u8 {
    let (from, to) = (f32::from(from), f32::from(to));
    // The cast truncates and saturates.
    (from + factor as f32 * (to - from)) as u8
}

/// Weights of 5 for the pixel and 1 for each of its eight neighbours; edges are unchanged.
fn smoothed(image: &Raster) -> Raster {
    let (width, height) = (image.width, image.height);
    let mut smooth = image.clone();
    for y in 1..height.saturating_sub(1) {
        for x in 1..width.saturating_sub(1) {
            let mut sums = [0; 3];
            for row in y - 1..=y + 1 {
                let begin = row * width + x;
                for pixel in &image.pixels[begin - 1..=begin + 1] {
                    add(&mut sums, *pixel, 1);
                }
            }
            add(&mut sums, image.pixels[y * width + x], 4);
            let rounded = sums.map(|sum| (f32::from(sum) / 13.0 + 0.5) as u8);
            smooth.pixels[y * width + x] = rounded;
        }
    }
    smooth
}

fn add(sums: &mut [u16; 3], pixel: [u8; 3], times: u16) {
    for (sum, value) in sums.iter_mut().zip(pixel) {
        *sum += times * u16::from(value);
    }
}

/// Hue, saturation and value, each from 0 to 255. Rounding to 32 bits is as in Pillow.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let most = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let below = |value: u8| f32::from(most - value) / range;
    let later =
        |sixths: f64, a: u8, b: u8| (sixths + f64::from(below(a)) - f64::from(below(b))) as f32;
    let sixths = if red == most {
        below(blue) - below(green)
    } else if green == most {
        later(2.0, red, blue)
    } else {
        later(4.0, green, red)
    };
    let hue = (f64::from(sixths) / 6.0 + 1.0).fract() as f32;
    let saturation = range / f32::from(most);
    let byte = |share: f32| (f64::from(share) * 255.0) as u8;
    [byte(hue), byte(saturation), most]
}

fn from_hsv([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let (sixth, rest) = (sixths.floor(), sixths.fract() as f32);
    let saturation = f32::from(saturation) / 255.0;
    let without = |share: f64| (f64::from(value) * (1.0 - share)).round() as u8;
    let low = without(f64::from(saturation));
    let down = without(f64::from(saturation * rest));
    let up = without(f64::from(saturation) * (1.0 - f64::from(rest)));
    match sixth as u8 % 6 {
        0 => [value, up, low],
        1 => [down, value, low],
        2 => [low, value, up],
        3 => [low, down, value],
        4 => [up, low, value],
        _ => [value, low, down],
    }
}
