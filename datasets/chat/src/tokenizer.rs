use std::{
    collections::HashSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokenizers::{Encoding, Tokenizer as HuggingFace};

use crate::{ChatError, SpecialTokens, reader::exists};

/// The tokenizer of a model's folder: `tokenizer.json`, with the special tokens that
/// `tokenizer_config.json` names. Clones share it.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("tokenizer.json"), r#"{"model": {"type": "WordLevel",
/// #     "vocab": {"[UNK]": 0, "Hi": 1, "</s>": 2}, "unk_token": "[UNK]"}, "pre_tokenizer": {"type": "Whitespace"},
/// #     "added_tokens": [{"id": 2, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
/// #     "rstrip": false, "normalized": false}]}"#)?;
/// # std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token": "</s>"}"#)?;
/// # let folder = folder.path();
/// use stovepipe_chat::ChatTokenizer;
///
/// let tokenizer = ChatTokenizer::of_folder(folder)?;
/// assert_eq!((tokenizer.vocabulary(), tokenizer.eos(), tokenizer.bos()), (3, Some(2), None));
/// assert_eq!(tokenizer.encode("Hi</s>")?, [1, 2]);
/// assert!(tokenizer.check_vocabulary(2).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ChatTokenizer {
    inner: Arc<HuggingFace>,
    /// `tokenizer.json`.
    path: PathBuf,
    tokens: SpecialTokens,
    /// What the tokenizer puts before a text.
    beginning: Vec<u32>,
    /// Added tokens that are no text.
    special: Arc<HashSet<u32>>,
    vocabulary: usize,
}

impl ChatTokenizer {
    /// Reads the tokenizer of a model's folder. Its settings for truncation and padding are
    /// ignored.
    ///
    /// # Errors
    ///
    /// If there is no `tokenizer.json`, or a file cannot be read.
    ///
    /// ```
    /// let folder = tempfile::tempdir()?;
    /// let error = stovepipe_chat::ChatTokenizer::of_folder(folder.path()).unwrap_err();
    /// assert!(error.to_string().contains("has no tokenizer.json"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of_folder(folder: &Path) -> Result<Self, ChatError> {
        let path = folder.join("tokenizer.json");
        if !exists(&path)? {
            let folder = folder.to_owned();
            return Err(if exists(&folder.join("tokenizer.model"))? {
                ChatError::OnlySentencePiece(folder)
            } else {
                ChatError::NoTokenizer(folder)
            });
        }
        let json = std::fs::read(&path).map_err(ChatError::unreadable(&path))?;
        let tokens = SpecialTokens::read(folder)?;
        let parsed = caught(|| Self::parse(&json, &path, tokens));
        parsed.map_err(|source| ChatError::NotATokenizer(path, source))
    }

    fn parse(json: &[u8], path: &Path, tokens: SpecialTokens) -> tokenizers::Result<Self> {
        let mut inner = HuggingFace::from_bytes(json)?;
        inner.with_padding(None).with_truncation(None)?;
        // Token numbers may have gaps.
        let largest = inner.get_vocab(true).into_values().max();
        let added = inner.get_added_tokens_decoder().into_iter();
        let special = added.filter_map(|(id, token)| token.special.then_some(id));
        Ok(Self {
            path: path.to_owned(),
            tokens,
            beginning: beginning(&inner)?,
            special: Arc::new(special.collect()),
            vocabulary: largest.map_or(0, |largest| largest as usize + 1),
            inner: inner.into(),
        })
    }

    /// The vocabulary that a model needs: the largest token plus 1, with added tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Checks that a model with a vocabulary of `model` tokens has all tokens.
    ///
    /// # Errors
    ///
    /// If it has fewer tokens.
    pub fn check_vocabulary(&self, model: usize) -> Result<(), ChatError> {
        let tokenizer = self.vocabulary();
        if tokenizer > model {
            return Err(ChatError::Vocabulary { tokenizer, model });
        }
        Ok(())
    }

    /// The token for the beginning of a text, if the folder names one that the tokenizer has.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.special("bos_token")
    }

    /// The token for the end of a text, if the folder names one that the tokenizer has.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.special("eos_token")
    }

    /// The token for padding, if the folder names one that the tokenizer has.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.special("pad_token")
    }

    fn special(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(self.tokens.get(name)?)
    }

    /// Encodes a text as it is: no token is added for its beginning or end.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails, for instance because it has no token for unknown words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        Ok(self.encoding(text)?.get_ids().to_vec())
    }

    /// Tokens with their places in the text.
    pub(crate) fn encoding(&self, text: &str) -> Result<Encoding, ChatError> {
        let encoding = caught(|| self.inner.encode(text, false));
        encoding.map_err(|source| ChatError::Tokenizer(self.path.clone(), source))
    }

    pub(crate) fn beginning(&self) -> &[u32] {
        &self.beginning
    }

    /// The end of a text that is learned without a template.
    pub(crate) fn needed_eos(&self) -> Result<u32, ChatError> {
        let no_end = || ChatError::NoEnd(self.path.parent().unwrap_or(&self.path).to_owned());
        self.eos().ok_or_else(no_end)
    }

    pub(crate) fn is_special(&self, token: u32) -> bool {
        self.special.contains(&token)
    }
}

/// Without the words of the vocabulary.
impl fmt::Debug for ChatTokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ChatTokenizer");
        shown.field("path", &self.path);
        shown.field("vocabulary", &self.vocabulary);
        shown.finish_non_exhaustive()
    }
}

/// The library panics at some damaged files.
fn caught<R>(run: impl FnOnce() -> tokenizers::Result<R>) -> tokenizers::Result<R> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("a panic without a message").into())
    })
}

/// The tokens that the post-processor puts before a text. It does not tell them, so a short text
/// shows them.
fn beginning(tokenizer: &HuggingFace) -> tokenizers::Result<Vec<u32>> {
    const PROBE: &str = "a";
    // A tokenizer without a token for the probe may fail.
    let Ok(encoding) = tokenizer.encode(PROBE, true) else {
        return Ok(Vec::new());
    };
    let plain = tokenizer.encode(PROBE, false)?;
    let (with, without) = (encoding.get_ids(), plain.get_ids());
    let added = with.len().saturating_sub(without.len());
    // Of tokens on both sides, the text's are in between. Without a token, all that is added is
    // taken to come first.
    let place = (0..=added).find(|&place| with.get(place..place + without.len()) == Some(without));
    let place = if without.is_empty() {
        added
    } else {
        place.unwrap_or(0)
    };
    Ok(with.iter().take(place).copied().collect())
}
