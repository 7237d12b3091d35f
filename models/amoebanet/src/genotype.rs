//! The operations of a cell, as data.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The state itself; where it must halve the map, a factorized reduction.
    Identity,
    /// ReLU, 1×1 convolution, batch norm.
    Conv1x1,
    /// A bottleneck around a 3×3 convolution.
    Conv3x3,
    /// A bottleneck around a 1×7 and a 7×1 convolution.
    Conv1x7And7x1,
    /// Twice a 3×3 separable convolution.
    Separable3x3,
    /// Twice a 5×5 separable convolution of every second pixel.
    DilatedSeparable5x5,
    /// Maximum over 2×2.
    MaxPool2x2,
    /// Maximum over 3×3.
    MaxPool3x3,
    /// Mean over those of 3×3 that are not padding.
    AveragePool3x3,
}

/// The wiring of a cell.
///
/// States 0 and 1 are the outputs of the two previous cells. Each pair of entries makes one more:
/// the sum of two operations, each on an earlier state. The output states, concatenated along the
/// channels, are the cell's output.
#[derive(Debug)]
pub(crate) struct Genotype {
    /// The cell's name in errors and tables.
    pub name: &'static str,
    /// The stride of the operations that read states 0 and 1: 1, or 2 to halve the map.
    pub stride: usize,
    /// The two operations of each state after the inputs, with the states that they read.
    pub entries: [[(Choice, usize); 2]; 5],
    /// The states that make up the output: those that nothing reads, and any other.
    pub outputs: &'static [usize],
}

impl Genotype {
    /// The number of states: two inputs, and one for each pair of entries.
    const STATES: usize = 2 + 5;

    /// The stride of the operation that reads `state`.
    pub const fn stride_from(&self, state: usize) -> usize {
        if state < 2 { self.stride } else { 1 }
    }

    /// Whether every entry reads an earlier state, and every state is used.
    ///
    /// An input of a cell that halves its map cannot be an output.
    pub const fn is_sound(&self) -> bool {
        let mut kept = [false; Self::STATES];
        let (entries, mut i) = (self.entries.as_flattened(), 0);
        while i < entries.len() {
            let state = entries[i].1;
            if state >= 2 + i / 2 {
                return false;
            }
            kept[state] = true;
            i += 1;
        }
        i = 0;
        while i < self.outputs.len() {
            let state = self.outputs[i];
            if state >= Self::STATES || self.stride_from(state) > 1 {
                return false;
            }
            kept[state] = true;
            i += 1;
        }
        i = 0;
        while i < kept.len() {
            if !kept[i] {
                return false;
            }
            i += 1;
        }
        true
    }
}
