use std::{fmt, path::Path, sync::Arc};

use burn::data::dataset::{Dataset, DatasetError};

use crate::{
    CifarError, CifarImage, CifarLabels,
    image::Records,
    layout::{ArchiveLayout, SplitFiles},
    read,
};

/// One split of CIFAR-10 or CIFAR-100, a Burn [`Dataset`] of [`CifarImage`]s in file order.
///
/// The whole split is in memory as bytes: 154 MB for all training images. A clone shares them.
///
/// ```
/// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
/// # let data = tempfile::tempdir()?;
/// # write_cifar100(data.path(), |_| record(&[11, 98], |channel, _, _| [200, 100, 0][channel]));
/// # let data = data.path();
/// use burn::data::dataset::Dataset;
/// use stovepipe_cifar::{Cifar, CifarLabels};
///
/// let train = Cifar::train(CifarLabels::Cifar100Fine, data)?;
/// let orange = train.get(0)?;
/// assert_eq!((orange.index(), orange.label()), (0, 98));
/// assert_eq!(orange.all_labels(), [11, 98]); // coarse and fine
/// let (y, x) = (5, 9);
/// let colour = [0, 1, 2].map(|channel| orange.pixels()[32 * (32 * channel + y) + x]);
/// assert_eq!(colour, [200, 100, 0]);
///
/// let test = Cifar::test(CifarLabels::Cifar100Coarse, data)?;
/// assert_eq!(test.get(0)?.label(), 11);
/// assert_eq!(test.names().len(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Cifar {
    records: Arc<Records>,
    names: Arc<[String]>,
}

impl Cifar {
    /// Reads the training images.
    ///
    /// `folder` is the folder that the official archive unpacks to, or the folder that contains it. Files may have fewer
    /// records than the published ones, to train on a part of the data.
    ///
    /// # Errors
    ///
    /// If a file is missing, truncated or too long, or has a label out of range.
    pub fn train(labels: CifarLabels, folder: &Path) -> Result<Self, CifarError> {
        Self::read(labels, folder, |layout| &layout.train)
    }

    /// Reads the test images. `folder` is as for [`train`](Self::train).
    ///
    /// # Errors
    ///
    /// As for [`train`](Self::train).
    pub fn test(labels: CifarLabels, folder: &Path) -> Result<Self, CifarError> {
        Self::read(labels, folder, |layout| &layout.test)
    }

    /// The class names in the folder, in the order of the labels.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// All records, as in its files.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.records.bytes
    }

    fn read(
        labels: CifarLabels,
        folder: &Path,
        split: fn(&'static ArchiveLayout) -> &'static SplitFiles,
    ) -> Result<Self, CifarError> {
        let layout = labels.layout();
        let folder = layout.locate(folder)?;
        // The folder must be complete, so the names of labels that are not used are read too.
        let names = (layout.labels.iter()).map(|label| read::names(layout, &folder, label));
        let mut names = names.collect::<Result<Vec<_>, _>>()?;
        let bytes = read::records(layout, &folder, split(layout))?;
        Ok(Self {
            records: Arc::new(Records { labels, bytes }),
            names: names.swap_remove(labels.byte()).into(),
        })
    }
}

/// Without 154 MB of pixels.
impl fmt::Debug for Cifar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Cifar");
        shown.field("labels", &self.records.labels);
        shown.field("images", &self.records.len());
        shown.finish_non_exhaustive()
    }
}

impl Dataset<CifarImage> for Cifar {
    fn get(&self, index: usize) -> Result<CifarImage, DatasetError> {
        Ok(CifarImage::new(self.records.clone(), index))
    }

    fn len(&self) -> usize {
        self.records.len()
    }
}
