//! Reference images from Pillow and torchvision, made by `tests/golden/golden.py`.

use std::path::PathBuf;

use crate::raster::Raster;

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

pub(crate) fn picture(name: &str) -> Raster {
    let image = image::open(path(name)).unwrap().into_rgb8();
    Raster {
        width: image.width() as usize,
        height: image.height() as usize,
        pixels: image.as_raw().as_chunks().0.to_vec(),
    }
}

/// The arguments of each case, and its result of the given height.
pub(crate) fn tiles(name: &str, height: usize) -> Vec<(Vec<String>, Raster)> {
    let stacked = picture(&format!("{name}.png"));
    let tiles = stacked.pixels.chunks_exact(stacked.width * height);
    let mut reader = csv::ReaderBuilder::new();
    let rows = (reader.has_headers(false)).from_path(path(&format!("{name}.csv")));
    let rows: Vec<_> = rows.unwrap().into_records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), tiles.len());
    let pairs = rows.iter().zip(tiles).map(|(row, tile)| {
        let raster = Raster {
            width: stacked.width,
            height,
            pixels: tile.to_vec(),
        };
        (row.iter().map(str::to_owned).collect(), raster)
    });
    pairs.collect()
}

/// The largest difference of two values, and the mean difference.
pub(crate) fn difference(a: &Raster, b: &Raster) -> (u8, f64) {
    assert_eq!((a.width, a.height), (b.width, b.height));
    let (a, b) = (a.pixels.as_flattened(), b.pixels.as_flattened());
    let differences = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let largest = differences.clone().max().unwrap();
    let mean = differences.map(f64::from).sum::<f64>() / a.len() as f64;
    (largest, mean)
}
