//! What the fuzz targets run. The tests of the workspace share these files, and run them on the seeds.

pub mod plan;
pub mod schedule;
