use std::{fmt, sync::Arc};

use crate::{CifarLabels, PIXELS, SIDE};

/// The records of a split, as in its files.
pub(crate) struct Records {
    pub labels: CifarLabels,
    pub bytes: Vec<u8>,
}

impl Records {
    pub fn len(&self) -> usize {
        self.bytes.len() / self.labels.layout().record()
    }
}

/// One image of a [`Cifar`](crate::Cifar) and its label. It refers to its set and copies no pixels.
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
    /// If `index` is out of bounds.
    pub(crate) fn new(records: Arc<Records>, index: usize) -> Self {
        let images = records.len();
        assert!(index < images, "image {index} of {images} is out of bounds");
        Self { records, index }
    }

    /// Its index in its set.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its class, of the labels that the set was read with.
    #[must_use]
    pub fn label(&self) -> u8 {
        self.record()[self.records.labels.byte()]
    }

    /// All its labels: one for CIFAR-10, the coarse and the fine one for CIFAR-100.
    #[must_use]
    pub fn all_labels(&self) -> &[u8] {
        let record = self.record();
        &record[..record.len() - PIXELS]
    }

    /// Its 3,072 pixels: 32 rows of 32 red values, then green, then blue.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        let record = self.record();
        &record[record.len() - PIXELS..]
    }

    pub(crate) fn labels(&self) -> CifarLabels {
        self.records.labels
    }

    pub(crate) fn plane(&self, channel: usize) -> &[[u8; SIDE]] {
        let (rows, _) = self.pixels().as_chunks();
        &rows[SIDE * channel..SIDE * (channel + 1)]
    }

    fn record(&self) -> &[u8] {
        let length = self.records.labels.layout().record();
        &self.records.bytes[length * self.index..length * (self.index + 1)]
    }
}

/// Without the pixels.
impl fmt::Debug for CifarImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("CifarImage");
        shown.field("index", &self.index);
        shown.field("label", &self.label());
        shown.finish_non_exhaustive()
    }
}
