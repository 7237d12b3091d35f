//! What a cell computes, as data.

/// An operation that a cell may apply to a state.
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
/// the sum of what two operations make of an earlier state. The output states, concatenated along
/// the channels, are the cell's output.
#[derive(Debug)]
pub(crate) struct Genotype {
    /// What errors and tables call the cell.
    pub name: &'static str,
    /// The stride of the operations that read states 0 and 1: 1, or 2 to halve the map.
    pub stride: usize,
    /// The operations, each with the state that it reads.
    pub entries: [(Choice, usize); 10],
    /// The states that make up the output: those that nothing reads, and any other.
    pub outputs: &'static [usize],
}

impl Genotype {
    /// The number of states: two that come in, and one of each pair of entries.
    const STATES: usize = 2 + 10 / 2;

    /// The stride of the operation that reads `state`.
    pub const fn stride_from(&self, state: usize) -> usize {
        if state < 2 { self.stride } else { 1 }
    }

    /// Whether every entry reads a state that is there by then, and no state is lost.
    ///
    /// An output of a cell that halves its map cannot be a state that came in.
    pub const fn is_sound(&self) -> bool {
        let mut kept = [false; Self::STATES];
        let mut i = 0;
        while i < self.entries.len() {
            let state = self.entries[i].1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{AMOEBANET_B, AMOEBANET_D};

    #[test]
    fn a_lost_state_or_one_from_the_future_is_unsound() {
        let [normal, reduction] = [&AMOEBANET_D.normal, &AMOEBANET_D.reduction];
        let lost = Genotype {
            outputs: &[0, 3, 4],
            ..*normal
        };
        let future = Genotype {
            entries: [(Choice::Identity, 2); 10],
            ..*normal
        };
        let large = Genotype {
            outputs: &[0, 4, 5, 6],
            ..*reduction
        };
        let missing = Genotype {
            outputs: &[0, 3, 4, 6, 7],
            ..*normal
        };
        let lost_by_b = Genotype {
            outputs: &[6],
            ..AMOEBANET_B.reduction
        };
        for genotype in [lost, future, large, missing, lost_by_b] {
            assert!(!genotype.is_sound(), "{genotype:?}");
        }
    }
}
