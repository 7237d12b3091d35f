//! Numbers that a stage reads from its device at the end of a run: all at once, since each read waits for all
//! that the device has to do.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

/// Numbers to read.
#[derive(Default)]
pub(crate) struct Numbers {
    tensors: Vec<Tensor<1>>,
    length: usize,
}

/// The place of some numbers among those that were read.
pub(crate) type Place = Range<usize>;

impl Numbers {
    pub(crate) fn add(&mut self, numbers: Tensor<1>) -> Place {
        let begin = self.length;
        self.length += numbers.dims()[0];
        self.tensors.push(numbers.cast(DType::F32));
        begin..self.length
    }

    /// Adds those that there are.
    pub(crate) fn add_some(
        &mut self,
        some: impl IntoIterator<Item = Option<Tensor<1>>>,
    ) -> Vec<Option<Place>> {
        let some = some.into_iter();
        some.map(|own| own.map(|own| self.add(own))).collect()
    }

    /// Adds those of micro-batches.
    pub(crate) fn add_all(
        &mut self,
        all: impl IntoIterator<Item = (usize, Tensor<1>)>,
    ) -> Vec<(usize, Place)> {
        let all = all.into_iter();
        all.map(|(index, own)| (index, self.add(own))).collect()
    }

    pub(crate) fn read(self) -> NumbersRead {
        if self.tensors.is_empty() {
            return NumbersRead(Vec::new());
        }
        let all = Tensor::cat(self.tensors, 0).into_data();
        NumbersRead(all.iter().collect())
    }
}

/// Numbers that were read.
pub(crate) struct NumbersRead(Vec<f64>);

impl NumbersRead {
    pub(crate) fn sum(&self, place: &Place) -> f64 {
        self.at(place).iter().sum()
    }

    pub(crate) fn at(&self, place: &Place) -> &[f64] {
        &self.0[place.clone()]
    }

    /// The last of some that is NaN or infinite.
    pub(crate) fn last_not_finite(&self, some: &[Option<Place>]) -> Option<usize> {
        let is_wrong = |place: &Option<Place>| {
            (place.as_ref()).is_some_and(|place| !self.sum(place).is_finite())
        };
        some.iter().rposition(is_wrong)
    }
}
