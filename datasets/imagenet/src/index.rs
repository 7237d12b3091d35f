//! The images of a folder, and their classes.

mod cache;
mod conventions;
mod entries;
mod folder;
mod labels;
mod sets;
mod walk;

#[cfg(test)]
mod memory;

pub use cache::IndexCache;
pub use folder::{ImageFolder, images_in};
pub use sets::{FolderSettings, ImageSets};
