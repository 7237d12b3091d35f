//! Operations on each channel's values, with Pillow's arithmetic.

use crate::raster::Raster;

/// Keeps the `bits` most significant bits.
pub(super) fn posterize(image: &mut Raster, bits: u32) {
    let mask = !(0xff_u8.checked_shr(bits).unwrap_or(0));
    image.map(|value| value & mask);
}

/// Inverts values at or above the threshold.
pub(super) fn solarize(image: &mut Raster, threshold: f64) {
    let is_dark = |value| f64::from(value) < threshold;
    image.map(|value| if is_dark(value) { value } else { 255 - value });
}

/// Stretches each channel to the full range.
pub(super) fn auto_contrast(image: &mut Raster) {
    by_channel(image, |counts| {
        let dark = counts.iter().position(|&count| count > 0)?;
        let bright = counts.iter().rposition(|&count| count > 0)?;
        if bright <= dark {
            return None;
        }
        let scale = 255.0 / (bright - dark) as f64;
        let offset = -(dark as f64) * scale;
        let stretched = |value| (value as f64 * scale + offset) as u8;
        Some(std::array::from_fn(stretched))
    });
}

/// Makes all values of each channel about equally frequent.
pub(super) fn equalize(image: &mut Raster) {
    by_channel(image, |counts| {
        let last = counts.iter().rposition(|&count| count > 0)?;
        let step = (counts.iter().sum::<u32>() - counts[last]) / 255;
        if step == 0 {
            return None;
        }
        let mut seen = step / 2;
        Some(std::array::from_fn(|value| {
            let level = (seen / step).min(255) as u8;
            seen += counts[value];
            level
        }))
    });
}

/// Applies a table to each channel, computed from its histogram. Channels without a table are unchanged.
fn by_channel(image: &mut Raster, table: impl Fn(&[u32; 256]) -> Option<[u8; 256]>) {
    for channel in 0..3 {
        let mut counts = [0; 256];
        for pixel in &image.pixels {
            counts[usize::from(pixel[channel])] += 1;
        }
        if let Some(table) = table(&counts) {
            for pixel in &mut image.pixels {
                pixel[channel] = table[usize::from(pixel[channel])];
            }
        }
    }
}
