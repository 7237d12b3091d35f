//! The patches of a map that a convolution's kernel meets.

use std::sync::Arc;

use crate::{
    rows::add,
    taps::{Taps, masked},
};

/// How a kernel moves over a map of one channel.
#[derive(Clone, Debug)]
pub(crate) struct Patches {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    /// The row and column of the map where it begins; as many zeros are added at the end.
    first: usize,
    map: [usize; 2],
    output: [usize; 2],
    /// If the output has the shape of the map.
    taps: Option<Arc<Taps>>,
}

impl Patches {
    /// `None` if the kernel is larger than the padded map, or if `first` and the padding are both set.
    pub(crate) fn new(
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        first: usize,
        map: [usize; 2],
    ) -> Option<Self> {
        if first > 0 && padding != [0; 2] {
            return None; // skipped values would stand where the padding is
        }
        let length = |i: usize| {
            let slack = (map[i] + 2 * padding[i]).checked_sub(kernel[i])?;
            Some(slack / stride[i] + 1)
        };
        let output = [length(0)?, length(1)?];
        let is_in_place = stride == [1; 2] && output == map && first == 0;
        Some(Self {
            kernel,
            stride,
            padding,
            first,
            map,
            output,
            taps: is_in_place.then(|| Arc::new(Taps::new(map, kernel, padding, 1, 0))),
        })
    }

    /// The rows and columns of the output.
    pub(crate) fn output(&self) -> [usize; 2] {
        self.output
    }

    pub(crate) fn map_size(&self) -> usize {
        self.map[0] * self.map[1]
    }

    pub(crate) fn size(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.output[0] * self.output[1]
    }

    pub(crate) fn are_the_map(&self) -> bool {
        (self.kernel, self.stride, self.padding, self.first) == ([1; 2], [1; 2], [0; 2], 0)
    }

    /// Writes what each value of the kernel meets, through `change`, in the order of the output.
    /// Where it meets nothing, `patches` must hold zeros already.
    #[inline(always)]
    pub(crate) fn read(&self, map: &[f32], patches: &mut [f32], change: impl Fn(f32) -> f32) {
        let Some(taps) = &self.taps else {
            return self.for_each_row(|start, row, places| {
                let line = &mut patches[start..][..self.output[1]];
                places.read(&map[row * self.map[1]..][..self.map[1]], line, &change);
            });
        };
        let planes = patches.chunks_exact_mut(self.output[0] * self.output[1]);
        for (tap, plane) in taps.all().zip(planes) {
            let met = map[tap.met].iter().zip(tap.mask);
            for (patch, (&x, &mask)) in plane[tap.centers].iter_mut().zip(met) {
                *patch = masked(change(x), mask, 0.0);
            }
        }
    }

    /// The reverse of [`read`](Self::read): adds each value of `patches` to the place it came from.
    #[inline(always)]
    pub(crate) fn add(&self, patches: &[f32], map: &mut [f32]) {
        let Some(taps) = &self.taps else {
            return self.for_each_row(|start, row, places| {
                let line = &patches[start..][..self.output[1]];
                places.add(line, &mut map[row * self.map[1]..][..self.map[1]]);
            });
        };
        let planes = patches.chunks_exact(self.output[0] * self.output[1]);
        for (tap, plane) in taps.all().zip(planes) {
            let centers = plane[tap.centers].iter().zip(tap.mask);
            for (sum, (&patch, &mask)) in map[tap.met].iter_mut().zip(centers) {
                *sum += masked(patch, mask, 0.0);
            }
        }
    }

    /// Calls `work` for each value of the kernel and each row of the output that meets the map, with
    /// the index of its first patch, the row of the map, and the places in it.
    #[inline(always)]
    fn for_each_row(&self, mut work: impl FnMut(usize, usize, Places)) {
        let [rows, columns] = self.output;
        let kernel = (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j)));
        for (tap, (i, j)) in kernel.enumerate() {
            let column = j + self.first;
            let (width, step, padding) = (self.map[1], self.stride[1], self.padding[1]);
            let places = Places::new(column, columns, width, step, padding);
            for row in 0..rows {
                let met = (row * self.stride[0] + i + self.first).checked_sub(self.padding[0]);
                if let Some(met) = met.filter(|&met| met < self.map[0]) {
                    work((tap * rows + row) * columns, met, places);
                }
            }
        }
    }
}

/// Which columns of a row a column of the kernel meets: none for the first outputs, then every
/// `step`-th from `first` on, then none.
#[derive(Clone, Copy)]
struct Places {
    before: usize,
    met: usize,
    first: usize,
    step: usize,
}

impl Places {
    fn new(column: usize, outputs: usize, width: usize, step: usize, padding: usize) -> Self {
        // Output o meets column o · step + column − padding, if that is at least 0 and below width.
        let reach = |end: usize| end.saturating_sub(column).div_ceil(step).min(outputs);
        let (before, end) = (reach(padding), reach(width + padding));
        Self {
            before,
            met: end.saturating_sub(before),
            first: (before * step + column).saturating_sub(padding),
            step,
        }
    }

    #[inline(always)]
    fn read(self, row: &[f32], line: &mut [f32], change: impl Fn(f32) -> f32) {
        let line = line[self.before..][..self.met].iter_mut();
        let row = row.get(self.first..).unwrap_or_default();
        match self.step {
            1 => (line.zip(row)).for_each(|(patch, &x)| *patch = change(x)),
            step => (line.zip(row.chunks(step))).for_each(|(patch, all)| *patch = change(all[0])),
        }
    }

    #[inline(always)]
    fn add(self, line: &[f32], row: &mut [f32]) {
        let line = &line[self.before..][..self.met];
        let row = row.get_mut(self.first..).unwrap_or_default();
        match self.step {
            1 => add(row, line),
            step => (row.chunks_mut(step).zip(line)).for_each(|(all, x)| all[0] += x),
        }
    }
}
