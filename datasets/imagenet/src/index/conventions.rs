//! Names by convention: of images, of the folders of splits, and of label files.

/// The endings of images, in lower or upper case. The format is recognized by the content.
pub(super) const ENDINGS: &[&str] = &["jpg", "jpeg", "png", "webp", "bmp", "gif"];

/// Names of the folder of training images, in lower or upper case.
pub(super) const TRAIN: &[&str] = &["train", "training", "train_set", "training_set"];

/// Names of the folder of validation images, in lower or upper case. The first one that exists is used.
#[rustfmt::skip]
pub(super) const VALIDATION: &[&str] = &[
    "val", "valid", "validation", "dev", "eval", "test", "testing", "val_set", "validation_set", "test_set",
];

/// Names of label files in the folder of validation images or beside it.
pub(super) const LABELS: [&str; 6] = [
    "val.txt",
    "val_annotations.txt",
    "val_labels.txt",
    "LOC_val_solution.csv",
    "imagenet_2012_validation_synset_labels.txt",
    "ILSVRC2012_validation_ground_truth.txt",
];

pub(super) fn is_image(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    (ENDINGS.iter()).any(|known| known.eq_ignore_ascii_case(ending))
}

pub(super) fn is_split(folder: &str) -> bool {
    let mut names = TRAIN.iter().chain(VALIDATION);
    names.any(|name| name.eq_ignore_ascii_case(folder))
}
