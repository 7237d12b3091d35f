/// An image of the model's input size, for augmentation: red, green and blue of each pixel, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Raster {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<[u8; 3]>,
}

impl Raster {
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            pixels: vec![[0; 3]; width * height],
        }
    }

    /// Changes each value of each pixel.
    pub fn map(&mut self, to: impl Fn(u8) -> u8) {
        let table: [u8; 256] = std::array::from_fn(|value| to(value as u8));
        for value in self.pixels.as_flattened_mut() {
            *value = table[usize::from(*value)];
        }
    }
}

/// The gray value of a pixel, as Pillow computes it.
pub(crate) fn gray([red, green, blue]: [u8; 3]) -> u8 {
    let weighted = 19595 * u32::from(red) + 38470 * u32::from(green) + 7471 * u32::from(blue);
    ((weighted + 0x8000) >> 16) as u8
}
