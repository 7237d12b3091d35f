//! From a few numbers to a list of layers.

use burn::{config::Config, tensor::Device};

use crate::{
    auxiliary::AuxiliaryHead,
    cell::{Cell, Place},
    genotype::{Genotype, NORMAL, REDUCTION},
    head::Classifier,
    layer::AmoebaLayer,
    stem::StemConvolution,
};

/// How AmoebaNet begins.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Stem {
    /// For images of 224×224 and more: a convolution of stride 2 and two reduction cells shrink
    /// the map to an eighth.
    ImageNet,
    /// For images of 32×32: a convolution of stride 1, a normal cell and a reduction cell, as wide
    /// as those of the large stem, shrink the map to a half.
    Small,
}

/// AmoebaNet-D(L, D): L normal cells of D filters.
///
/// Counts of parameters, for 1000 classes: (18, 208) 81.5M, (18, 416) 319M, (18, 544) 543M,
/// (36, 544) 1.06B, (72, 512) 1.84B.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct AmoebaNetDConfig {
    /// L, the number of normal cells: a multiple of three. The model has six more layers.
    pub layers: usize,
    /// D, the channels of a state in the first normal cells: a multiple of four.
    pub filters: usize,
    /// The number of classes.
    pub classes: usize,
    /// How the network begins.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
    /// Whether a second classifier, at two thirds of the depth, takes part in training.
    #[config(default = false)]
    pub auxiliary: bool,
}

/// There is no such AmoebaNet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmoebaNetError {
    /// The normal cells stand in three groups of one size.
    #[error("the number of normal cells must be a multiple of 3 from 3 to 3000, not {0}")]
    Layers(usize),
    /// The stem has a quarter of the filters.
    #[error("the number of filters must be a multiple of 4 from 4 to 65536, not {0}")]
    Filters(usize),
    /// There is nothing to tell apart.
    #[error("there must be at least one class")]
    Classes,
}

impl AmoebaNetDConfig {
    /// Makes the layers, L + 6 of them; each parameter is allocated on `device` when it is first
    /// used.
    ///
    /// # Errors
    ///
    /// [`AmoebaNetError`] if L is no multiple of 3 from 3 to 3000, D no multiple of 4 from 4 to
    /// 65536, or there is no class.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_amoebanet::{AmoebaNetDConfig, AmoebaNetError};
    /// use stovepipe_pipeline::count_parameters;
    ///
    /// let layers = AmoebaNetDConfig::new(72, 512, 1000).init(&Device::flex())?;
    /// assert_eq!(layers.len(), 78);
    /// assert_eq!(count_parameters(&layers), 1_844_858_344); // none allocated yet
    ///
    /// let error = AmoebaNetDConfig::new(4, 512, 1000).init(&Device::flex()).unwrap_err();
    /// assert_eq!(error, AmoebaNetError::Layers(4));
    /// # Ok::<(), AmoebaNetError>(())
    /// ```
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
        // Beyond these bounds even the running statistics, which are not lazy, are too many.
        let multiple = |number: usize, of: usize, most: usize| {
            (of..=most).contains(&number) && number.is_multiple_of(of)
        };
        match self {
            _ if !multiple(self.layers, 3, 3000) => Err(AmoebaNetError::Layers(self.layers)),
            _ if !multiple(self.filters, 4, 65_536) => Err(AmoebaNetError::Filters(self.filters)),
            _ if self.classes == 0 => Err(AmoebaNetError::Classes),
            _ => Ok(()),
        }
    }

    /// The cells, and the channels that the last of them puts out.
    fn cells(&self, device: &Device) -> (Vec<Cell>, usize) {
        let mut inputs = [self.filters / 4; 2];
        let mut reduced = false;
        let mut cells = Vec::new();
        for (index, (genotype, channels)) in self.plan().into_iter().enumerate() {
            let mut cell = Cell::new(
                genotype,
                Place {
                    inputs,
                    reduced,
                    channels,
                },
                device,
            );
            inputs = [genotype.outputs.len() * channels, inputs[0]];
            reduced = genotype.stride > 1;
            if self.auxiliary && index == self.before_last_reduction() {
                cell = cell.with_auxiliary(AuxiliaryHead::new(inputs[0], self.classes, device));
            }
            cells.push(cell);
        }
        (cells, inputs[0])
    }

    /// The place in the [`plan`](Self::plan) of the last cell of the second group.
    fn before_last_reduction(&self) -> usize {
        2 * (1 + self.layers / 3)
    }

    /// The kind and the width of each cell: one of the stem's, then three times a reduction, the
    /// first of which is the stem's too, and a group of normal cells.
    fn plan(&self) -> Vec<(&'static Genotype, usize)> {
        let first = match self.stem {
            Stem::ImageNet => &REDUCTION,
            Stem::Small => &NORMAL,
        };
        let mut plan = vec![(first, self.filters / 2)];
        for width in [1, 2, 4].map(|factor| factor * self.filters) {
            plan.push((&REDUCTION, width));
            plan.extend(vec![(&NORMAL, width); self.layers / 3]);
        }
        plan
    }
}
