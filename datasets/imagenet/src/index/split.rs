//! Holds out validation images.

use siphasher::sip::SipHasher24;

use super::folder::ImageFolder;
use crate::ImagenetError;

/// Holds out the same share of each class, at least one image of two. Returns training images and validation images.
///
/// Images are ranked by a hash of their names. A random generator would depend on the seed of the run, and on the number of
/// images before each.
pub(super) fn split(
    all: &ImageFolder,
    share: f64,
) -> Result<(ImageFolder, ImageFolder), ImagenetError> {
    let mut sides = [Vec::new(), Vec::new()];
    let images: Vec<u32> = (0..all.len() as u32).collect();
    for class in images.chunk_by(|&a, &b| all.label(a as usize) == all.label(b as usize)) {
        let ranked = ranked(all, class);
        let (validation, train) = ranked.split_at(held_out(share, class.len()));
        sides[0].extend_from_slice(train);
        sides[1].extend_from_slice(validation);
    }
    if sides.iter().any(Vec::is_empty) {
        return Err(ImagenetError::Split {
            path: all.root().to_owned(),
            images: all.len(),
            share,
        });
    }
    let [train, validation] = sides.map(|mut images| {
        images.sort_unstable();
        all.choose(images)
    });
    Ok((train, validation))
}

/// The number of images to hold out.
fn held_out(share: f64, images: usize) -> usize {
    let rounded = (share * images as f64).round() as usize;
    rounded.clamp(1, images.max(2) - 1).min(images - 1)
}

/// Images of a class by the hashes of their names. The hash must stay the same in all releases.
fn ranked(all: &ImageFolder, class: &[u32]) -> Vec<u32> {
    let hasher = SipHasher24::new();
    let hash = |image: u32| hasher.hash(all.name(image as usize).as_bytes());
    let mut ranked: Vec<_> = class.iter().map(|&image| (hash(image), image)).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, image)| image).collect()
}
