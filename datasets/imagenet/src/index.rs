//! The images of a folder, and their classes.

mod cache;
mod conventions;
mod entries;
mod folder;
mod labels;
mod names;
mod sets;
mod split;
mod walk;

#[cfg(test)]
mod memory;

pub use cache::IndexCache;
pub use folder::ImageFolder;
pub use sets::{FolderSettings, ImageSets};
