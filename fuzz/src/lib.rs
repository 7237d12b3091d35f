//! What the fuzz targets run. The tests of the workspace share these files, and run them on the seeds.

pub mod chat;
pub mod cifar;
mod files;
pub mod imagenet;
mod input;
pub mod panics;
pub mod plan;
pub mod report;
pub mod schedule;
pub mod text;
pub mod train;
