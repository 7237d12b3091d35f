//! One coloured area for boxes too narrow to be seen.
//!
//! A step of a thousand micro-batches has more boxes in a lane than pixels. A run of such boxes is cut
//! into pieces of a few pixels. In each piece the colours are stacked, each as high as its share of
//! time; the rest is the bubble. Equal neighbours are drawn as one, so that the picture stays small.

use std::collections::BTreeMap;

use super::{round, shade::Colour};

/// The width of a box that took no time, in pixels: it must be visible.
const LEAST: f64 = 0.4;
/// The width of a piece in pixels.
const PIECE: f64 = 6.0;

/// Consecutive narrow boxes: colour, left and right end in pixels.
#[derive(Default)]
pub(super) struct NarrowBoxes {
    pub boxes: Vec<(Colour, f64, f64)>,
}

impl NarrowBoxes {
    pub fn end(&self) -> f64 {
        self.boxes.last().map_or(f64::MIN, |&(_, _, right)| right)
    }

    /// Whether there are several colours to stack.
    pub fn is_crowded(&self) -> bool {
        self.boxes.iter().any(|of| of.0 != self.boxes[0].0)
    }

    /// Adds the outlines of each colour to `paths`, in a lane at `y` of this `height`.
    pub fn draw(&self, paths: &mut BTreeMap<Colour, String>, y: f64, height: f64) {
        let start = self.boxes.first().map_or(0.0, |&(_, left, _)| left);
        let width = (self.end() - start).max(LEAST);
        if let [(colour, ..)] = self.boxes[..] {
            let stack = [(colour, height as u32)];
            return outline(&stack, paths, (start, width), y + height);
        }
        let pieces = (width / PIECE).ceil().max(1.0);
        let pitch = width / pieces;
        let shares = self.shares(start, pitch, pieces as usize);
        let stacks = shares.iter().map(|shares| stack(shares, pitch, height));
        let stacks: Vec<_> = stacks.collect();
        let mut from = 0;
        while from < stacks.len() {
            let equal = stacks[from..].iter().take_while(|s| **s == stacks[from]);
            let to = from + equal.count();
            let x = start + pitch * from as f64;
            let width = pitch * (to - from) as f64;
            outline(&stacks[from], paths, (x, width), y + height);
            from = to;
        }
    }

    /// For each piece, the pixels of each colour.
    fn shares(&self, start: f64, pitch: f64, pieces: usize) -> Vec<BTreeMap<Colour, f64>> {
        let mut shares = vec![BTreeMap::<Colour, f64>::new(); pieces];
        for &(colour, left, right) in &self.boxes {
            let piece = |x: f64| (((x - start) / pitch) as usize).min(pieces - 1);
            // A box is narrower than a piece: it is in at most two.
            let (first, last) = (piece(left), piece(right));
            let border = (start + pitch * last as f64).clamp(left, right);
            if first < last {
                *shares[first].entry(colour).or_default() += border - left;
            }
            let left = if first < last { border } else { left };
            *shares[last].entry(colour).or_default() += right - left;
        }
        shares
    }
}

/// How high each colour is, from the bottom: heights in whole pixels, whose sum is that of the shares.
fn stack(shares: &BTreeMap<Colour, f64>, width: f64, height: f64) -> Vec<(Colour, u32)> {
    let (mut below, mut drawn) = (0.0, 0);
    let heights = shares.iter().map(|(&colour, pixels)| {
        below += pixels / width;
        let top = (below.min(1.0) * height).round() as u32;
        let high = top - drawn;
        drawn = top;
        (colour, high)
    });
    heights.collect()
}

fn outline(
    stack: &[(Colour, u32)],
    paths: &mut BTreeMap<Colour, String>,
    (x, width): (f64, f64),
    bottom: f64,
) {
    let mut bottom = bottom;
    for &(colour, high) in stack.iter().filter(|(_, high)| *high > 0) {
        bottom -= f64::from(high);
        let (x, y, width) = (round(x), round(bottom), round(width));
        let path = paths.entry(colour).or_default();
        path.push_str(&format!("M{x} {y}h{width}v{high}h-{width}z"));
    }
}
