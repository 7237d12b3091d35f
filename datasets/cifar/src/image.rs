use std::{fmt, sync::Arc};

use crate::{Labels, PIXELS, SIDE};

/// The records of a split, as they are in its files.
pub(crate) struct Records {
    pub labels: Labels,
    pub bytes: Vec<u8>,
}

impl Records {
    pub fn len(&self) -> usize {
        self.bytes.len() / self.labels.layout().record()
    }
}

/// One image of a [`Cifar`](crate::Cifar), and its label.
///
/// It is a place in its set and copies no pixels.
#[derive(Clone)]
pub struct CifarImage {
    records: Arc<Records>,
    index: usize,
}

impl CifarImage {
    /// The image at `index`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn new(records: Arc<Records>, index: usize) -> Self {
        let images = records.len();
        assert!(index < images, "image {index} of {images} is out of bounds");
        Self { records, index }
    }

    /// Its place in its set, counted from 0.
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar10(data.path(), |_| record(&[6], |_, _, _| 0));
    /// # let test = stovepipe_cifar::Cifar::test(stovepipe_cifar::Labels::Cifar10, data.path())?;
    /// use burn::data::dataset::Dataset;
    ///
    /// assert_eq!(test.get(0)?.index(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The label that the set was read for.
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar100(data.path(), |_| record(&[11, 98], |_, _, _| 0));
    /// # let data = data.path();
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_cifar::{Cifar, Labels};
    ///
    /// let image = Cifar::test(Labels::Cifar100Fine, data)?.get(0)?;
    /// assert_eq!(image.label(), 98);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn label(&self) -> u8 {
        self.record()[self.records.labels.byte()]
    }

    /// All its labels, as a record has them: the label of CIFAR-10; the coarse and the fine one of CIFAR-100.
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar100(data.path(), |_| record(&[11, 98], |_, _, _| 0));
    /// # let data = data.path();
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_cifar::{Cifar, Labels};
    ///
    /// let image = Cifar::test(Labels::Cifar100Fine, data)?.get(0)?;
    /// assert_eq!(image.all_labels(), [11, 98]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn all_labels(&self) -> &[u8] {
        let record = self.record();
        &record[..record.len() - PIXELS]
    }

    /// Its 3,072 pixels: 32 rows of 32 red ones, then green, then blue.
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar10(data.path(), |_| record(&[6], |channel, _, _| [200, 100, 0][channel]));
    /// # let test = stovepipe_cifar::Cifar::test(stovepipe_cifar::Labels::Cifar10, data.path())?;
    /// use burn::data::dataset::Dataset;
    ///
    /// let orange = test.get(0)?;
    /// let (y, x) = (5, 9);
    /// let colour = [0, 1, 2].map(|channel| orange.pixels()[32 * (32 * channel + y) + x]);
    /// assert_eq!(colour, [200, 100, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        let record = self.record();
        &record[record.len() - PIXELS..]
    }

    /// What the labels are, and with them the set's colours.
    pub(crate) fn labels(&self) -> Labels {
        self.records.labels
    }

    /// The rows of one channel.
    pub(crate) fn plane(&self, channel: usize) -> &[[u8; SIDE]] {
        let (rows, _) = self.pixels().as_chunks();
        &rows[SIDE * channel..SIDE * (channel + 1)]
    }

    fn record(&self) -> &[u8] {
        let length = self.records.labels.layout().record();
        &self.records.bytes[length * self.index..length * (self.index + 1)]
    }
}

/// Without its pixels, let alone those of its set.
impl fmt::Debug for CifarImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("CifarImage");
        shown.field("index", &self.index);
        shown.field("label", &self.label());
        shown.finish_non_exhaustive()
    }
}
