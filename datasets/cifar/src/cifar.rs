use std::{fmt, path::Path, sync::Arc};

use burn::data::dataset::{Dataset, DatasetError};

use crate::{
    CifarError, CifarImage, Labels,
    image::Records,
    layout::{Files, Layout},
    read,
};

/// One split of CIFAR-10 or CIFAR-100, a Burn [`Dataset`] of [`CifarImage`]s in file order.
///
/// The whole split is in memory, as the bytes of its files: 154 MB for all training images. A clone shares them.
#[derive(Clone)]
pub struct Cifar {
    records: Arc<Records>,
    names: Arc<[String]>,
}

impl Cifar {
    /// The images to train on.
    ///
    /// `folder` is what the official archive of the data set unpacks to, or the folder that holds it. Its files may have
    /// fewer records than the published ones (50,000 in all), so that a part of the data can be trained on.
    ///
    /// # Errors
    ///
    /// If a file of the split or of class names is missing, cut short, too long, or has labels that are none; see
    /// [`CifarError`].
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar10(data.path(), |_| record(&[6], |_, _, _| 0));
    /// # let data = data.path();
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_cifar::{Cifar, Labels};
    ///
    /// let train = Cifar::train(Labels::Cifar10, data)?;
    /// let image = train.get(0)?;
    /// assert_eq!(image.label(), 6);
    /// assert_eq!(train.names()[6], "frog");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn train(labels: Labels, folder: &Path) -> Result<Self, CifarError> {
        Self::read(labels, folder, |layout| &layout.train)
    }

    /// The images to test on, 10,000 in the published file. `folder` is as for [`train`](Self::train).
    ///
    /// # Errors
    ///
    /// As for [`train`](Self::train).
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar100(data.path(), |_| record(&[11, 98], |_, _, _| 0));
    /// # let data = data.path();
    /// use burn::data::dataset::Dataset;
    /// use stovepipe_cifar::{Cifar, Labels};
    ///
    /// let test = Cifar::test(Labels::Cifar100Coarse, data)?;
    /// assert_eq!(test.get(0)?.label(), 11);
    /// assert_eq!(test.names().len(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn test(labels: Labels, folder: &Path) -> Result<Self, CifarError> {
        Self::read(labels, folder, |layout| &layout.test)
    }

    /// The names of the classes, in the order of the labels, as the folder has them.
    ///
    /// # Example
    ///
    /// ```
    /// # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
    /// # let data = tempfile::tempdir()?;
    /// # write_cifar10(data.path(), |_| record(&[6], |_, _, _| 0));
    /// # let data = data.path();
    /// use stovepipe_cifar::{Cifar, Labels};
    ///
    /// let test = Cifar::test(Labels::Cifar10, data)?;
    /// assert_eq!(test.names()[..3], ["airplane", "automobile", "bird"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn read(
        labels: Labels,
        folder: &Path,
        split: fn(&'static Layout) -> &'static Files,
    ) -> Result<Self, CifarError> {
        let layout = labels.layout();
        let folder = layout.locate(folder)?;
        // All files of names are looked at, also those of labels that are not asked for: the
        // folder is whole or it is not.
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
