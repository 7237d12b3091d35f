//! The worst mistakes of a model: `mistakes.json`, and the pictures beside it.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::picture::Picture;

/// An entry of `mistakes.json`, which is a list of them, the worst one first.
///
/// ```
/// use stovepipe_report::MistakeEntry;
///
/// let text = r#"[{
///     "file": "test/1234", "label": "8", "said": "3", "probability": 0.93, "loss": 4.1,
///     "picture": "mistakes/01.png"
/// }]"#;
/// let entries: Vec<MistakeEntry> = serde_json::from_str(text)?;
/// assert_eq!(entries[0].said, "3");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MistakeEntry {
    /// The sample's name: its file, or its index in the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The name of its class.
    pub label: String,
    /// The name of the predicted class.
    pub said: String,
    /// The probability of the predicted class, from 0 to 1; `None` if it was not finite.
    pub probability: Option<f64>,
    /// The sample's loss; `None` if it was not finite.
    pub loss: Option<f64>,
    /// Its picture in the run's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<PicturePath>,
}

/// The path of a picture, relative to the run's folder and inside it.
///
/// ```
/// use stovepipe_report::PicturePath;
///
/// let path = PicturePath::try_from("mistakes/01.png".to_owned())?;
/// assert_eq!(path.as_str(), "mistakes/01.png");
/// assert!(PicturePath::try_from("../01.png".to_owned()).is_err());
/// # Ok::<(), stovepipe_report::PicturePathError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PicturePath(String);

/// A path that leads out of the run's folder.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the picture {0:?} is not inside the run's folder")]
pub struct PicturePathError(String);

impl PicturePath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PicturePath {
    type Error = PicturePathError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut parts = Path::new(&text).components();
        let is_normal = parts.all(|part| matches!(part, Component::Normal(_)));
        // A backslash separates folders on some systems.
        if is_normal && !text.is_empty() && !text.contains(['\\', '\0']) {
            Ok(Self(text))
        } else {
            Err(PicturePathError(text))
        }
    }
}

impl From<PicturePath> for String {
    fn from(path: PicturePath) -> Self {
        path.0
    }
}

/// A mistake, with its picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mistake {
    /// Its entry in `mistakes.json`.
    pub entry: MistakeEntry,
    /// Its picture, if the file exists and is not too large for a page.
    pub picture: Option<Picture>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_inside_the_folder() {
        for (path, is_inside) in [
            ("01.png", true),
            ("mistakes/01.png", true),
            ("mistakes/…/ü <1>.png", true),
            ("", false),
            ("/etc/passwd", false),
            ("../01.png", false),
            ("mistakes/../../01.png", false),
            ("..\\01.png", false),
            ("C:\\01.png", false),
            ("a\0b", false),
        ] {
            let found = PicturePath::try_from(path.to_owned());
            assert_eq!(found.is_ok(), is_inside, "{path:?}");
        }
    }
}
