use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::{Digit, DigitsError, archive};

/// Rows whose index is a multiple of this are test images.
const TEST_EVERY: usize = 5;

/// One split of the handwritten digits, a Burn [`Dataset`] of [`Digit`]s in file order.
///
/// Rows of the archive whose index is a multiple of 5 are test images (360), the others are training images (1,437). A
/// clone shares the images.
///
/// ```
/// use burn::data::dataset::Dataset;
/// use stovepipe_digits::Digits;
///
/// let (train, test) = (Digits::train()?, Digits::test()?);
/// assert_eq!((train.len(), test.len()), (1_437, 360));
/// assert_eq!((train.get(0)?.label, test.as_slice()[0].label), (1, 0));
/// assert_eq!(train.few(20, 7).len(), 200);
/// let last = test.only(&[5, 6, 7, 8, 9]);
/// assert_eq!(last.len(), 178);
/// assert_eq!(last.get(0)?.label, 0); // a five
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Digits {
    items: Arc<[Digit]>,
}

impl Digits {
    /// The 1,437 training images.
    ///
    /// # Errors
    ///
    /// If the embedded archive is damaged.
    pub fn train() -> Result<Self, DigitsError> {
        Self::rows(|row| row % TEST_EVERY != 0)
    }

    /// The 360 test images.
    ///
    /// # Errors
    ///
    /// If the embedded archive is damaged.
    pub fn test() -> Result<Self, DigitsError> {
        Self::rows(|row| row % TEST_EVERY == 0)
    }

    /// All images of the split, in file order.
    #[must_use]
    pub fn as_slice(&self) -> &[Digit] {
        &self.items
    }

    /// Keeps only some digits. They become the classes 0, 1, … in the given order.
    #[must_use]
    pub fn only(&self, digits: &[u8]) -> Self {
        let class = |digit: &Digit| digits.iter().position(|&own| own == digit.label);
        let chosen = self.items.iter().filter_map(|digit| {
            let label = u8::try_from(class(digit)?).ok()?;
            Some(Digit { label, ..*digit })
        });
        let items = chosen.collect();
        Self { items }
    }

    /// Keeps at most `of_each` random images of each class, in file order.
    #[must_use]
    pub fn few(&self, of_each: usize, seed: u64) -> Self {
        let mut places: Vec<usize> = (0..self.items.len()).collect();
        places.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut left = [of_each; u8::MAX as usize + 1];
        places.retain(|&place| {
            let left = &mut left[usize::from(self.items[place].label)];
            let is_kept = *left > 0;
            *left = left.saturating_sub(1);
            is_kept
        });
        places.sort_unstable();
        let items = places.into_iter().map(|place| self.items[place]).collect();
        Self { items }
    }

    /// The rows of the archive whose index `keep` accepts.
    fn rows(keep: impl Fn(usize) -> bool) -> Result<Self, DigitsError> {
        let rows = archive::parse(archive::ARCHIVE)?.into_iter().enumerate();
        let kept = rows.filter(|&(row, _)| keep(row)).map(|(_, digit)| digit);
        let items = kept.collect();
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
        for digit in split.as_slice() {
            counts[usize::from(digit.label)] += 1;
        }
        counts
    }

    #[test]
    fn the_splits_have_their_documented_sizes() {
        let (train, test) = (Digits::train().unwrap(), Digits::test().unwrap());
        assert_eq!((train.len(), test.len()), (1_437, 360));
        let expected = [136, 154, 151, 135, 143, 143, 151, 153, 138, 133];
        assert_eq!(classes(&train), expected);
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
    fn chosen_digits_become_classes_in_the_given_order() {
        let test = Digits::test().unwrap();
        let chosen = test.only(&[9, 3]);
        assert_eq!(classes(&chosen)[..3], [47, 48, 0]);
        let mut originals = (test.as_slice().iter()).filter(|digit| [9, 3].contains(&digit.label));
        for digit in chosen.as_slice() {
            let original = originals.next().unwrap();
            assert_eq!(digit.pixels, original.pixels);
            assert_eq!([9, 3][usize::from(digit.label)], original.label);
        }
        assert_eq!(originals.next(), None);
        assert_eq!(test.only(&[]).len(), 0);
    }

    #[test]
    fn a_few_of_each_class_are_drawn_by_seed() {
        let train = Digits::train().unwrap();
        let few = train.few(20, 1);
        assert_eq!(classes(&few), [20; CLASSES]);
        assert_eq!(few.as_slice(), train.few(20, 1).as_slice());
        assert_ne!(few.as_slice(), train.few(20, 2).as_slice());
        assert_eq!(train.few(10_000, 0).as_slice(), train.as_slice());
        assert_eq!(train.few(0, 0).len(), 0);
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
    fn get_out_of_bounds_panics() {
        _ = Digits::test().unwrap().get(360);
    }
}
