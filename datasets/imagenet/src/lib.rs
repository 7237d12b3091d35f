//! Folders of images as Burn batches.
