//! Compares operations with those of torchvision.

use super::{color, rand_augment::OPERATIONS};
use crate::{
    golden::{difference, picture, tiles},
    raster::Raster,
};

fn apply(image: &mut Raster, name: &str, strength: f64, sign: f64) {
    if name == "Hue" {
        return color::hue(image, sign * strength / 100.0);
    }
    let (_, operation) = OPERATIONS.iter().find(|(known, _)| *known == name).unwrap();
    operation(image, strength / 30.0, sign);
}

#[test]
fn operations_equal_those_of_torchvision() {
    let source = picture("small.png");
    let tiles = tiles("operations", source.height);
    for (name, _) in OPERATIONS {
        assert!(tiles.iter().any(|(row, _)| row[0] == name), "{name}");
    }
    for (row, expected) in tiles {
        let mut image = source.clone();
        let [strength, sign] = [1, 2].map(|field| row[field].parse().unwrap());
        apply(&mut image, &row[0], strength, sign);
        assert_eq!(difference(&image, &expected), (0, 0.0), "{row:?}");
    }
}
