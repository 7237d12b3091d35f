//! Turns a configuration into a list of layers.

use burn::tensor::Device;

use crate::{
    cell::{Cell, Place},
    error::AmoebaNetError,
    family::Family,
    genotype::Genotype,
    head::{AuxiliaryHead, Classifier},
    layer::AmoebaLayer,
    stem::{Stem, StemConvolution},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub family: &'static Family,
    pub layers: usize,
    pub filters: usize,
    pub classes: usize,
    pub stem: Stem,
    pub auxiliary: bool,
    pub drop_path: f64,
}

impl Network {
    /// Makes the layers; their parameters are lazy.
    pub fn init(&self, device: &Device) -> Result<Vec<AmoebaLayer>, AmoebaNetError> {
        self.check()?;
        let stride = match self.stem {
            Stem::ImageNet => 2,
            Stem::Small => 1,
        };
        let stem = StemConvolution::new(self.filters / 4, stride, device);
        let (cells, channels) = self.cells(device);
        let head = Classifier::new(channels, self.classes, device);

        let mut layers = vec![AmoebaLayer::Stem(stem)];
        layers.extend(cells.into_iter().map(AmoebaLayer::Cell));
        layers.push(AmoebaLayer::Head(head));
        Ok(layers)
    }

    fn check(&self) -> Result<(), AmoebaNetError> {
        // The running statistics are not lazy: beyond these bounds they need too much memory.
        let multiple = |number: usize, of: usize, most: usize| {
            (of..=most).contains(&number) && number.is_multiple_of(of)
        };
        match self {
            _ if !multiple(self.layers, 3, 3000) => Err(AmoebaNetError::Layers(self.layers)),
            _ if !multiple(self.filters, 4, 65_536) => Err(AmoebaNetError::Filters(self.filters)),
            _ if self.classes == 0 => Err(AmoebaNetError::Classes),
            _ if !(0.0..1.0).contains(&self.drop_path) => {
                Err(AmoebaNetError::DropPath(self.drop_path))
            }
            _ => Ok(()),
        }
    }

    /// The cells, and the channels of the last one's output.
    fn cells(&self, device: &Device) -> (Vec<Cell>, usize) {
        let mut inputs = [self.filters / 4; 2];
        let mut reduced = false;
        let mut cells = Vec::new();
        let kinds = self.cell_kinds();
        let count = kinds.len();
        for (index, (genotype, channels)) in kinds.into_iter().enumerate() {
            let place = Place {
                inputs,
                reduced,
                channels,
                drop_path: self.drop_path_of(index, count),
            };
            let mut cell = Cell::new(genotype, place, device);
            inputs = [genotype.outputs.len() * channels, inputs[0]];
            reduced = genotype.stride > 1;
            if self.auxiliary && index == self.before_last_reduction() {
                cell = cell.with_auxiliary(AuxiliaryHead::new(inputs[0], self.classes, device));
            }
            cells.push(cell);
        }
        (cells, inputs[0])
    }

    /// The probability that a cell drops an operation: it grows linearly with the cell's index.
    fn drop_path_of(&self, cell: usize, cells: usize) -> f64 {
        self.drop_path * ((cell + 1) as f64 / cells as f64)
    }

    /// The index in [`cell_kinds`](Self::cell_kinds) of the last cell of the second group.
    fn before_last_reduction(&self) -> usize {
        2 * (1 + self.layers / 3)
    }

    /// The kind and the width of each cell: the stem's two, the second of which is a reduction, and
    /// three groups of normal cells, of which each but the first follows a reduction.
    fn cell_kinds(&self) -> Vec<(&'static Genotype, usize)> {
        let Family {
            normal,
            reduction,
            stem_divisors,
        } = self.family;
        let first = match self.stem {
            Stem::ImageNet => reduction,
            Stem::Small => normal,
        };
        let d = self.filters;
        let [first_width, second_width] = stem_divisors.map(|divisor| d / divisor);
        let mut kinds = vec![(first, first_width)];
        for (before, width) in [(second_width, d), (2 * d, 2 * d), (4 * d, 4 * d)] {
            kinds.push((reduction, before));
            kinds.extend(vec![(normal, width); self.layers / 3]);
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::AMOEBANET_D;

    #[test]
    fn drop_path_grows_evenly_to_the_last_cell() {
        let network = Network {
            family: &AMOEBANET_D,
            layers: 3,
            filters: 4,
            classes: 10,
            stem: Stem::Small,
            auxiliary: false,
            drop_path: 0.3,
        };
        assert_eq!(network.cell_kinds().len(), 7);
        assert_eq!(network.drop_path_of(6, 7), 0.3);
        let all = (0..7).map(|cell| network.drop_path_of(cell, 7));
        for (found, expected) in all.zip((1..=7).map(|i| 0.3 * f64::from(i) / 7.0)) {
            assert!((found - expected).abs() < 1e-15);
        }
    }
}
