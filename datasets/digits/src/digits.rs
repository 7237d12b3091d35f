use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};

use crate::{Digit, DigitsError, archive};

/// Every fifth row of the archive, from the first on, is a test image.
const TEST_EVERY: usize = 5;

/// One split of the handwritten digits, a Burn [`Dataset`] of [`Digit`]s.
///
/// The split is fixed: the rows whose index in the archive is a multiple of 5 are for testing (360), the others for
/// training (1,437), both in file order. A clone shares the images.
#[derive(Clone, Debug)]
pub struct Digits {
    items: Arc<[Digit]>,
}

impl Digits {
    /// The 1,437 images to train on: every row whose index is not a multiple of 5.
    ///
    /// # Errors
    ///
    /// When the embedded archive is damaged; see [`DigitsError`].
    ///
    /// # Example
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_digits::Digits;
    ///
    /// let train = Digits::train()?;
    /// assert_eq!(train.len(), 1_437);
    /// assert_eq!(train.get(0)?.label, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn train() -> Result<Self, DigitsError> {
        Self::rows(|row| row % TEST_EVERY != 0)
    }

    /// The 360 images to test on: every row whose index is a multiple of 5.
    ///
    /// # Errors
    ///
    /// When the embedded archive is damaged; see [`DigitsError`].
    ///
    /// # Example
    ///
    /// ```
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_digits::Digits;
    ///
    /// let test = Digits::test()?;
    /// assert_eq!(test.len(), 360);
    /// assert_eq!(test.get(0)?.label, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn test() -> Result<Self, DigitsError> {
        Self::rows(|row| row % TEST_EVERY == 0)
    }

    /// All images of the split, in file order.
    ///
    /// # Example
    ///
    /// ```
    /// let test = stovepipe_digits::Digits::test()?;
    /// let zeros = test.as_slice().iter().filter(|digit| digit.label == 0).count();
    /// assert_eq!(zeros, 42);
    /// # Ok::<(), stovepipe_digits::DigitsError>(())
    /// ```
    #[must_use]
    pub fn as_slice(&self) -> &[Digit] {
        &self.items
    }

    /// The rows of the archive that `keep` wants.
    fn rows(keep: impl Fn(usize) -> bool) -> Result<Self, DigitsError> {
        let rows = archive::parse(archive::ARCHIVE)?.into_iter().enumerate();
        let items = rows
            .filter(|&(row, _)| keep(row))
            .map(|(_, digit)| digit)
            .collect();
        Ok(Self { items })
    }
}

impl Dataset<Digit> for Digits {
    fn get(&self, index: usize) -> Result<Digit, DatasetError> {
        Ok(self.items[index])
    }

    fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CLASSES;

    fn classes(split: &Digits) -> [usize; CLASSES] {
        let mut counts = [0; CLASSES];
        split
            .as_slice()
            .iter()
            .for_each(|digit| counts[usize::from(digit.label)] += 1);
        counts
    }

    #[test]
    fn the_splits_have_their_documented_sizes() {
        let (train, test) = (Digits::train().unwrap(), Digits::test().unwrap());
        assert_eq!((train.len(), test.len()), (1_437, 360));
        assert_eq!(
            classes(&train),
            [136, 154, 151, 135, 143, 143, 151, 153, 138, 133]
        );
        assert_eq!(classes(&test), [42, 28, 26, 48, 38, 39, 30, 26, 36, 47]);
    }

    #[test]
    fn the_splits_are_disjoint_and_together_the_whole_archive() {
        let (train, test) = (Digits::train().unwrap(), Digits::test().unwrap());
        let (mut train, mut test) = (train.as_slice().iter(), test.as_slice().iter());
        for (row, digit) in archive::parse(archive::ARCHIVE).unwrap().iter().enumerate() {
            let split = if row % 5 == 0 { &mut test } else { &mut train };
            assert_eq!(split.next(), Some(digit), "row {row}");
        }
        assert_eq!((train.next(), test.next()), (None, None));
    }

    #[test]
    fn a_clone_shares_the_images() {
        let test = Digits::test().unwrap();
        assert!(Arc::ptr_eq(&test.items, &test.clone().items));
    }

    #[test]
    fn get_follows_file_order() {
        let test = Digits::test().unwrap();
        for (index, digit) in test.as_slice().iter().enumerate() {
            assert_eq!(test.get(index).unwrap(), *digit);
        }
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn get_beyond_the_end_panics_as_the_trait_says() {
        _ = Digits::test().unwrap().get(360);
    }
}
