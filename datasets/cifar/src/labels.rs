use crate::{
    CHANNELS,
    layout::{ArchiveLayout, CIFAR_10, CIFAR_100},
};

/// The labels to learn, and with them the data set.
///
/// ```
/// use stovepipe_cifar::CifarLabels;
///
/// assert_eq!(CifarLabels::Cifar10.names()[3], "cat");
/// assert_eq!(CifarLabels::Cifar100Coarse.classes(), 20);
/// let [red, green, blue] = CifarLabels::Cifar10.mean();
/// assert!(red > green && green > blue);
/// assert!(CifarLabels::Cifar100Fine.std().iter().all(|std| (0.2..0.3).contains(std)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CifarLabels {
    /// The 10 classes of CIFAR-10.
    Cifar10,
    /// The 100 classes of CIFAR-100.
    Cifar100Fine,
    /// The 20 superclasses of CIFAR-100, of five classes each.
    Cifar100Coarse,
}

impl CifarLabels {
    /// The number of classes.
    #[must_use]
    pub fn classes(self) -> usize {
        self.layout().labels[self.byte()].classes
    }

    /// The names of the classes, by their labels.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Cifar10 => &CIFAR_10_NAMES,
            Self::Cifar100Fine => &CIFAR_100_FINE_NAMES,
            Self::Cifar100Coarse => &CIFAR_100_COARSE_NAMES,
        }
    }

    /// The mean of each channel over all training images, with pixels from 0 to 1.
    #[must_use]
    pub fn mean(self) -> [f32; CHANNELS] {
        // As published with many recipes, for instance
        // https://github.com/kuangliu/pytorch-cifar/issues/19 and
        // https://github.com/weiaicunzai/pytorch-cifar100.
        match self {
            Self::Cifar10 => [0.491_399_68, 0.482_158_41, 0.446_530_9],
            Self::Cifar100Fine | Self::Cifar100Coarse => [0.507_075_16, 0.486_548_87, 0.440_917_84],
        }
    }

    /// The standard deviation of each channel over all training images, with pixels from 0 to 1.
    ///
    /// The smaller values in use for CIFAR-10 (0.2023, 0.1994, 0.2010) are the mean deviation within an image; images
    /// normalised by them have a variance above 1.
    #[must_use]
    pub fn std(self) -> [f32; CHANNELS] {
        match self {
            Self::Cifar10 => [0.247_032_23, 0.243_485_13, 0.261_587_84],
            Self::Cifar100Fine | Self::Cifar100Coarse => [0.267_334_29, 0.256_438_46, 0.276_150_47],
        }
    }

    pub(crate) fn layout(self) -> &'static ArchiveLayout {
        match self {
            Self::Cifar10 => &CIFAR_10,
            Self::Cifar100Fine | Self::Cifar100Coarse => &CIFAR_100,
        }
    }

    /// Its index among a record's label bytes.
    pub(crate) fn byte(self) -> usize {
        match self {
            Self::Cifar10 | Self::Cifar100Coarse => 0,
            Self::Cifar100Fine => 1,
        }
    }
}

/// From `batches.meta.txt` of the archive.
#[rustfmt::skip]
const CIFAR_10_NAMES: [&str; 10] = [
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
];

/// From `fine_label_names.txt`.
#[rustfmt::skip]
const CIFAR_100_FINE_NAMES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl",
    "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair",
    "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin",
    "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp",
    "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck",
    "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television",
    "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf",
    "woman", "worm",
];

/// From `coarse_label_names.txt`.
#[rustfmt::skip]
const CIFAR_100_COARSE_NAMES: [&str; 20] = [
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables",
    "household_electrical_devices", "household_furniture", "insects", "large_carnivores",
    "large_man-made_outdoor_things", "large_natural_outdoor_scenes", "large_omnivores_and_herbivores",
    "medium_mammals", "non-insect_invertebrates", "people", "reptiles", "small_mammals", "trees",
    "vehicles_1", "vehicles_2",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_name_and_they_are_sorted() {
        use CifarLabels::*;
        for labels in [Cifar10, Cifar100Fine, Cifar100Coarse] {
            assert_eq!(labels.names().len(), labels.classes());
            assert!(labels.names().is_sorted());
        }
    }
}
