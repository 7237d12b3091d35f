//! The members of the family: a table for each kind of cell, and the widths of the stem's cells.

use crate::genotype::{
    Choice::{
        AveragePool3x3, Conv1x1, Conv1x7And7x1, Conv3x3, DilatedSeparable5x5, Identity, MaxPool2x2,
        MaxPool3x3, Separable3x3,
    },
    Genotype,
};

#[derive(Debug)]
pub(crate) struct Family {
    /// The cell that keeps the size of the map.
    pub normal: Genotype,
    /// The cell that halves the map.
    pub reduction: Genotype,
    /// D divided by these is the width of the stem's two cells.
    pub stem_divisors: [usize; 2],
}

impl Family {
    const fn is_sound(&self) -> bool {
        let strides_fit = self.normal.stride == 1 && self.reduction.stride == 2;
        strides_fit && self.normal.is_sound() && self.reduction.is_sound()
    }
}

/// AmoebaNet-D, with torchgpipe's stem.
pub(crate) static AMOEBANET_D: Family = Family {
    normal: Genotype {
        name: "NormalCell",
        stride: 1,
        entries: [
            [(Conv1x1, 1), (MaxPool3x3, 1)],
            [(Identity, 1), (Conv1x7And7x1, 0)],
            [(Conv1x1, 0), (Conv1x7And7x1, 0)],
            [(MaxPool3x3, 2), (Identity, 2)],
            [(AveragePool3x3, 1), (Conv1x1, 5)],
        ],
        outputs: &[0, 3, 4, 6],
    },
    reduction: Genotype {
        name: "ReductionCell",
        stride: 2,
        entries: [
            [(MaxPool2x2, 0), (MaxPool3x3, 0)],
            [(Identity, 2), (Conv3x3, 1)],
            [(Conv1x7And7x1, 2), (MaxPool3x3, 2)],
            [(Identity, 3), (MaxPool2x2, 1)],
            [(AveragePool3x3, 2), (Conv1x1, 3)],
        ],
        outputs: &[4, 5, 6],
    },
    stem_divisors: [2, 1],
};

/// AmoebaNet-B. The stem is the reference's, half as wide as AmoebaNet-D's. With it, (18, 512) has the
/// 557M parameters of the GPipe paper, and 560M with the wider one.
pub(crate) static AMOEBANET_B: Family = Family {
    normal: Genotype {
        name: "NormalCell",
        stride: 1,
        entries: [
            [(Conv1x1, 1), (MaxPool3x3, 1)],
            [(Identity, 1), (Separable3x3, 0)],
            [(Conv1x1, 1), (Separable3x3, 0)],
            [(Conv1x1, 2), (Identity, 2)],
            [(AveragePool3x3, 1), (Conv1x1, 5)],
        ],
        outputs: &[0, 3, 4, 6],
    },
    reduction: Genotype {
        name: "ReductionCell",
        stride: 2,
        entries: [
            [(MaxPool2x2, 0), (MaxPool3x3, 0)],
            [(Identity, 2), (Conv3x3, 1)],
            [(DilatedSeparable5x5, 2), (MaxPool3x3, 2)],
            [(Identity, 3), (Separable3x3, 1)],
            [(AveragePool3x3, 4), (Conv1x1, 3)],
        ],
        outputs: &[5, 6],
    },
    stem_divisors: [4, 2],
};

const _: () = assert!(AMOEBANET_D.is_sound() && AMOEBANET_B.is_sound());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::genotype::Choice;

    #[test]
    fn an_unused_state_or_one_from_the_future_is_unsound() {
        let [normal, reduction] = [&AMOEBANET_D.normal, &AMOEBANET_D.reduction];
        let with = |genotype: &Genotype, outputs| Genotype {
            outputs,
            ..*genotype
        };
        let unused = with(normal, &[0, 3, 4]);
        let future = Genotype {
            entries: [[(Choice::Identity, 2); 2]; 5],
            ..*normal
        };
        let large = with(reduction, &[0, 4, 5, 6]);
        let missing = with(normal, &[0, 3, 4, 6, 7]);
        let unused_by_b = with(&AMOEBANET_B.reduction, &[6]);
        for genotype in [unused, future, large, missing, unused_by_b] {
            assert!(!genotype.is_sound(), "{genotype:?}");
        }
    }
}
