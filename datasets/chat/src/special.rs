use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::ChatError;

/// The names of these tokens are variables of chat templates, as in Hugging Face's transformers.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The texts of a tokenizer's special tokens, such as `</s>` for `eos_token`.
///
/// ```
/// use stovepipe_chat::SpecialTokens;
///
/// let tokens = SpecialTokens::new([("bos_token", "<s>"), ("eos_token", "</s>")]);
/// assert_eq!(tokens.get("eos_token"), Some("</s>"));
/// assert_eq!(tokens.get("pad_token"), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens(Vec<(String, String)>);

impl SpecialTokens {
    /// From pairs of a name, such as `eos_token`, and the token's text.
    #[must_use]
    pub fn new<N: Into<String>, T: Into<String>>(tokens: impl IntoIterator<Item = (N, T)>) -> Self {
        let tokens = tokens.into_iter();
        Self(
            tokens
                .map(|(name, text)| (name.into(), text.into()))
                .collect(),
        )
    }

    /// Reads them from `tokenizer_config.json` of a model's folder, and from
    /// `special_tokens_map.json` what is not there. Both files are optional.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is not JSON.
    ///
    /// ```
    /// let folder = tempfile::tempdir()?;
    /// let config = r#"{"eos_token": {"content": "</s>"}, "pad_token": null}"#;
    /// std::fs::write(folder.path().join("tokenizer_config.json"), config)?;
    /// let tokens = stovepipe_chat::SpecialTokens::read(folder.path())?;
    /// assert_eq!(tokens.get("eos_token"), Some("</s>"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(folder: &Path) -> Result<Self, ChatError> {
        let (_, config) = config(folder)?;
        let map = read_object(&folder.join("special_tokens_map.json"))?;
        let tokens = NAMES.iter().filter_map(|&name| {
            let text = text(config.get(name)).or_else(|| text(map.get(name)))?;
            Some((name, text))
        });
        Ok(Self::new(tokens))
    }

    /// The text of the token of this name, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.iter().find(|(key, _)| *key == name);
        found.map(|(_, text)| text)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (&**name, &**text))
    }
}

/// A token is a string, or an object with its settings.
fn text(token: Option<&Value>) -> Option<&str> {
    let token = token?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// `tokenizer_config.json` of a folder: its path, and its keys, none if it is not there.
pub(crate) fn config(folder: &Path) -> Result<(PathBuf, Map<String, Value>), ChatError> {
    let path = folder.join("tokenizer_config.json");
    let config = read_object(&path)?;
    Ok((path, config))
}

/// The keys of a JSON file, none if it is not there.
fn read_object(path: &Path) -> Result<Map<String, Value>, ChatError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Map::new()),
        Err(error) => Err(ChatError::Unreadable(path.to_owned(), error)),
        Ok(json) => serde_json::from_slice(&json)
            .map_err(|source| ChatError::NotJson(path.to_owned(), source)),
    }
}
