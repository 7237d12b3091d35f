//! What shows that data are the same as before.

use sha2::{Digest, Sha256};
use stovepipe::train::data::Fingerprint;

/// Parts by name, and what is in each.
pub fn fingerprint<K: Into<String>>(parts: impl IntoIterator<Item = (K, String)>) -> Fingerprint {
    let named = |(name, content): (K, String)| (name.into(), content);
    parts.into_iter().map(named).collect()
}

/// A part for each class: under other numbers they would only look like a bad model.
pub fn of_classes(names: &[String]) -> Fingerprint {
    let numbered = names.iter().enumerate();
    fingerprint(numbered.map(|(number, name)| (format!("class {number}"), name.clone())))
}

/// The number of bytes, and their hash.
pub fn hashed<B: AsRef<[u8]>>(pieces: impl IntoIterator<Item = B>) -> String {
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    for piece in pieces {
        hash.update(&piece);
        bytes += piece.as_ref().len();
    }
    format!("{bytes} bytes {:.16}", format!("{:x}", hash.finalize()))
}
