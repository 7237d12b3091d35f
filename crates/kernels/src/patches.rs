//! The patches of a map that a convolution's kernel meets.

/// How a kernel moves over a map of one channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patches {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    /// The row and column of the map where it begins; as many of zeros are put at the end.
    first: usize,
    map: [usize; 2],
    output: [usize; 2],
}

impl Patches {
    /// `None` if the kernel is larger than the padded map.
    pub(crate) fn new(
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        first: usize,
        map: [usize; 2],
    ) -> Option<Self> {
        let length = |i: usize| {
            let slack = (map[i] + 2 * padding[i]).checked_sub(kernel[i])?;
            Some(slack / stride[i] + 1)
        };
        let output = [length(0)?, length(1)?];
        Some(Self {
            kernel,
            stride,
            padding,
            first,
            map,
            output,
        })
    }

    /// The rows and columns of the output.
    pub(crate) fn output(&self) -> [usize; 2] {
        self.output
    }

    /// Numbers of the map.
    pub(crate) fn map_size(&self) -> usize {
        self.map[0] * self.map[1]
    }

    /// Numbers of all patches.
    pub(crate) fn size(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.output[0] * self.output[1]
    }

    /// Whether the patches are the map itself.
    pub(crate) fn are_the_map(&self) -> bool {
        (self.kernel, self.stride, self.padding, self.first) == ([1; 2], [1; 2], [0; 2], 0)
    }

    /// Appends what each number of the kernel meets, in the order of the output.
    #[inline(always)]
    pub(crate) fn read(&self, map: &[f32], patches: &mut Vec<f32>) {
        self.for_each_row(|row, places| match row {
            Some(row) => places.read(&map[row * self.map[1]..][..self.map[1]], patches),
            None => patches.resize(patches.len() + self.output[1], 0.0),
        });
    }

    /// Adds what [`read`](Self::read) would append to where it came from.
    #[inline(always)]
    pub(crate) fn add(&self, patches: &[f32], map: &mut [f32]) {
        let mut lines = patches.chunks_exact(self.output[1]);
        self.for_each_row(|row, places| {
            let line = lines.next().unwrap_or_default();
            if let Some(row) = row {
                places.add(line, &mut map[row * self.map[1]..][..self.map[1]]);
            }
        });
    }

    /// Calls `work` for each row of the kernel, column of the kernel and row of the output, in
    /// order, with the row of the map that they meet, if any, and the places in it.
    #[inline(always)]
    fn for_each_row(&self, mut work: impl FnMut(Option<usize>, Places)) {
        for (i, j) in (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j))) {
            let places = Places::new(
                j + self.first,
                self.output[1],
                self.map[1],
                self.stride[1],
                self.padding[1],
            );
            for row in 0..self.output[0] {
                let met = (row * self.stride[0] + i + self.first).checked_sub(self.padding[0]);
                work(met.filter(|&row| row < self.map[0]), places);
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
    after: usize,
    first: usize,
    step: usize,
}

impl Places {
    fn new(column: usize, outputs: usize, width: usize, step: usize, padding: usize) -> Self {
        // Output o meets column o · step + column − padding, if that is at least 0 and below width.
        let before = padding.saturating_sub(column).div_ceil(step).min(outputs);
        let end = (width + padding)
            .saturating_sub(column)
            .div_ceil(step)
            .min(outputs);
        let met = end.saturating_sub(before);
        Self {
            before,
            met,
            after: outputs - before - met,
            first: (before * step + column).saturating_sub(padding),
            step,
        }
    }

    #[inline(always)]
    fn read(self, row: &[f32], line: &mut Vec<f32>) {
        line.resize(line.len() + self.before, 0.0);
        let met = row.get(self.first..).unwrap_or_default();
        match self.step {
            1 => line.extend_from_slice(&met[..self.met]),
            step => line.extend(met.chunks(step).take(self.met).map(|chunk| chunk[0])),
        }
        line.resize(line.len() + self.after, 0.0);
    }

    #[inline(always)]
    fn add(self, line: &[f32], row: &mut [f32]) {
        let line = &line[self.before..][..self.met];
        let met = row.get_mut(self.first..).unwrap_or_default();
        match self.step {
            1 => met.iter_mut().zip(line).for_each(|(sum, x)| *sum += x),
            step => (met.chunks_mut(step).zip(line)).for_each(|(chunk, x)| chunk[0] += x),
        }
    }
}
