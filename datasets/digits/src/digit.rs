use std::array;

use crate::SHAPE;

/// Side of a published scan. Each pixel counts the ink in a block of 4×4 dots.
const SCAN: usize = 8;

const SIDE: usize = SHAPE[1];

/// One handwritten digit, as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digit {
    /// The 8×8 scan, row by row, from 0 (paper) to 16 (ink).
    pub pixels: [u8; SCAN * SCAN],
    /// The class, 0 to 9.
    pub label: u8,
}

impl Digit {
    /// The scan enlarged to 32×32, row by row, from 0 to 16.
    ///
    /// The interpolation is PyTorch's `interpolate(mode="bilinear", align_corners=False)`.
    ///
    /// ```
    /// use stovepipe_digits::Digit;
    ///
    /// let mut digit = Digit { pixels: [0; 64], label: 1 };
    /// digit.pixels[0] = 16;
    /// let image = digit.enlarged();
    /// assert_eq!(image[..7], [16.0, 16.0, 14.0, 10.0, 6.0, 2.0, 0.0]);
    /// ```
    #[must_use]
    pub fn enlarged(&self) -> [f32; SIDE * SIDE] {
        let taps: [Neighbours; SIDE] = array::from_fn(Neighbours::of);
        let pixel = |y, x| f32::from(self.pixels[SCAN * y + x]);
        array::from_fn(|place| {
            let (y, x) = (taps[place / SIDE], taps[place % SIDE]);
            let line = |y| x.mix(pixel(y, x.low), pixel(y, x.high));
            y.mix(line(y.low), line(y.high))
        })
    }
}

/// The two scanned pixels around a pixel of the enlarged scan, along one axis.
#[derive(Clone, Copy)]
struct Neighbours {
    low: usize,
    high: usize,
    /// The weight of `high`, 0 to 1.
    weight: f32,
}

impl Neighbours {
    fn of(place: usize) -> Self {
        let centre = (place as f32 + 0.5) * (SCAN as f32 / SIDE as f32) - 0.5;
        let centre = centre.clamp(0.0, (SCAN - 1) as f32);
        let low = centre as usize;
        Self {
            low,
            high: (low + 1).min(SCAN - 1),
            weight: centre.fract(),
        }
    }

    fn mix(self, low: f32, high: f32) -> f32 {
        low + self.weight * (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digits;

    /// A scan whose rows are all `line`, or whose columns are if `upright`.
    fn stripes(line: [u8; SCAN], upright: bool) -> Digit {
        let index = |place| if upright { place / SCAN } else { place % SCAN };
        let pixels = array::from_fn(|place| line[index(place)]);
        Digit { pixels, label: 0 }
    }

    #[test]
    fn a_ramp_is_interpolated() {
        // Centres are at (i + 1/2) / 4 - 1/2 = -3/8, -1/8, 1/8, 3/8, 5/8, …; the ramp is twice the centre, clamped.
        let ramp: [f32; SIDE] = array::from_fn(|i| (i as f32 / 2.0 - 0.75).clamp(0.0, 14.0));
        let across = stripes([0, 2, 4, 6, 8, 10, 12, 14], false).enlarged();
        let down = stripes([0, 2, 4, 6, 8, 10, 12, 14], true).enlarged();
        for y in 0..SIDE {
            for x in 0..SIDE {
                let found = (across[SIDE * y + x], down[SIDE * y + x]);
                assert_eq!(found, (ramp[x], ramp[y]), "({y}, {x})");
            }
        }
    }

    #[test]
    fn a_point_spreads_over_its_neighbours_only() {
        let mut point = stripes([0; SCAN], false);
        point.pixels[SCAN * 3 + 5] = 16;
        let image = point.enlarged();
        // Weights of 1/8, 3/8, 5/8, 7/8 and back along each axis.
        assert_eq!(image.iter().sum::<f32>(), 256.0);
        assert_eq!(image[SIDE * 10 + 18], 16.0 / 64.0);
        assert_eq!(image[SIDE * 13 + 21], 16.0 * 49.0 / 64.0);
        assert_eq!(image[SIDE * 9 + 18], 0.0);
        assert_eq!(image[SIDE * 18 + 22], 0.0);
    }

    /// Values of the first row from two programs that agree exactly on all 1,797 images: OpenCV's `resize(…, (32, 32), interpolation=INTER_LINEAR)` and
    /// SciPy's `ndimage.zoom(…, 4, order=1, grid_mode=True, mode="nearest")`.
    #[test]
    fn the_first_scan_as_opencv_and_scipy_enlarge_it() {
        let image = Digits::test().unwrap().as_slice()[0].enlarged();
        let row = |y: usize| &image[SIDE * y..SIDE * (y + 1)];
        let top = [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.625, 1.875, 3.125, 4.375, 6.0, 8.0, 10.0, 12.0, 12.5,
            11.5, 10.5, 9.5, 8.0, 6.0, 4.0, 2.0, 0.875, 0.625, 0.375, 0.125, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0,
        ];
        let middle = [
            0.0, 0.0, 0.546875, 1.640625, 2.734375, 3.828125, 5.140625, 6.671875, 8.203125,
            9.734375, 9.1875, 6.5625, 3.9375, 1.3125, 0.0, 0.0, 0.0, 0.0, 1.046875, 3.140625,
            5.234375, 7.328125, 8.328125, 8.234375, 8.140625, 8.046875, 7.0, 5.0, 3.0, 1.0, 0.0,
            0.0,
        ];
        let bottom = [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75, 2.25, 3.75, 5.25, 6.875, 8.625, 10.375, 12.125,
            12.625, 11.875, 11.125, 10.375, 8.75, 6.25, 3.75, 1.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0,
        ];
        assert_eq!([row(0), row(15), row(31)], [top, middle, bottom]);

        // Each pixel times its index, counted from 1, by the same programs.
        let pixels = image.iter().zip(1..);
        let weighted = pixels.map(|(&pixel, place)| f64::from(pixel) * f64::from(place));
        assert_eq!(weighted.sum::<f64>(), 2_327_824.0);
    }
}
