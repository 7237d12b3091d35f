//! The worst mistakes of a model: `mistakes.json`, and the pictures beside it.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::picture::Picture;

/// An entry of `mistakes.json`, which is a list of them, the worst one first.
///
/// ```
/// use stovepipe_report::MistakeEntry;
///
/// let text = r#"[{
///     "file": "test/1234",
///     "label": "8",
///     "said": "3",
///     "probability": 0.93,
///     "loss": 4.1,
///     "picture": "mistakes/01.png"
/// }]"#;
/// let entries: Vec<MistakeEntry> = serde_json::from_str(text)?;
/// assert_eq!(entries[0].said, "3");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MistakeEntry {
    /// What the sample is called where it comes from: its file, or its place in the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The name of its class.
    pub label: String,
    /// The name of the class that the model thought the likeliest.
    pub said: String,
    /// The probability that the model gave to that class, from 0 to 1; none if it was no number.
    pub probability: Option<f64>,
    /// The sample's loss; none if it was no number.
    pub loss: Option<f64>,
    /// Where its picture lies in the run's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<PicturePath>,
}

/// Where a picture lies in a run's folder: names with slashes between them, which do not lead out of
/// it.
///
/// ```
/// use stovepipe_report::PicturePath;
///
/// let path: PicturePath = "mistakes/01.png".parse()?;
/// assert_eq!(path.as_str(), "mistakes/01.png");
/// assert!("../01.png".parse::<PicturePath>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PicturePath(String);

impl PicturePath {
    /// The path as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for PicturePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for PicturePath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut parts = Path::new(&text).components().peekable();
        let is_some = parts.peek().is_some();
        // A backslash separates folders on some systems.
        let stays = !text.contains(['\\', '\0']);
        match is_some && stays && parts.all(|part| matches!(part, Component::Normal(_))) {
            true => Ok(Self(text)),
            false => Err(format!(
                "the picture {text:?} is not inside the run's folder"
            )),
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
    /// What is said of it.
    pub entry: MistakeEntry,
    /// What it looks like, if the file is there and not too large for a page.
    pub picture: Option<Picture>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, is_inside: bool) {
        assert_eq!(path.parse::<PicturePath>().is_ok(), is_inside, "{path:?}");
    }

    #[test]
    fn a_picture_lies_inside_the_folder() {
        check("01.png", true);
        check("mistakes/01.png", true);
        check("mistakes/…/ü <1>.png", true);
        check("", false);
        check("/etc/passwd", false);
        check("../01.png", false);
        check("mistakes/../../01.png", false);
        check("..\\01.png", false);
        check("C:\\01.png", false);
        check("a\0b", false);
    }
}
