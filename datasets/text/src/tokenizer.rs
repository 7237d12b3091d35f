use std::{
    fmt, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use tokenizers::{ModelWrapper, Tokenizer as HuggingFace};

use crate::{TextError, pieces::pieces};

const BYTES: usize = 256;

/// Encodes text as tokens and decodes tokens: bytes, or the tokens of a Hugging Face `tokenizer.json`.
///
/// ```
/// use stovepipe_text::Tokenizer;
///
/// let bytes = Tokenizer::bytes();
/// assert_eq!(bytes.vocabulary(), 256);
/// assert_eq!(bytes.encode("né")?, [110, 195, 169]);
/// assert_eq!(bytes.decode(&[110, 195, 169, 255, 1000])?, "né��");
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizers/words.json");
/// let words = Tokenizer::read(path.as_ref())?;
/// assert_eq!(words.encode("the cat sat")?, [1, 2, 4]);
/// assert_eq!(words.vocabulary(), 10); // with added tokens
/// assert!(words.check_vocabulary(32_000).is_ok() && words.check_vocabulary(9).is_err());
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer(TokenizerKind);

#[derive(Clone)]
enum TokenizerKind {
    Bytes,
    HuggingFace {
        /// Its file, for errors.
        path: Arc<Path>,
        inner: Arc<HuggingFace>,
        vocabulary: usize,
        unknown: Option<u32>,
    },
}

impl Tokenizer {
    /// Each byte is a token: a vocabulary of 256.
    #[must_use]
    pub fn bytes() -> Self {
        Self(TokenizerKind::Bytes)
    }

    /// Reads a `tokenizer.json`, the file of Hugging Face's tokenizers that comes with models.
    ///
    /// Its settings for truncation and padding are ignored.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is not a `tokenizer.json`.
    pub fn read(path: &Path) -> Result<Self, TextError> {
        let json = fs::read(path).map_err(TextError::unreadable(path))?;
        let parsed = caught(|| Self::parse(&json, path));
        parsed.map_err(|source| TextError::NotATokenizer(path.to_owned(), source))
    }

    fn parse(json: &[u8], path: &Path) -> tokenizers::Result<Self> {
        let mut inner = HuggingFace::from_bytes(json)?;
        inner.with_padding(None).with_truncation(None)?;
        // Token numbers may have gaps.
        let largest = inner.get_vocab(true).into_values().max();
        let vocabulary = largest.map_or(0, |largest| largest as usize + 1);
        Ok(Self(TokenizerKind::HuggingFace {
            path: path.into(),
            unknown: unknown(&inner),
            inner: inner.into(),
            vocabulary,
        }))
    }

    /// The vocabulary that a model needs: the largest token plus 1, with added tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match &self.0 {
            TokenizerKind::Bytes => BYTES,
            TokenizerKind::HuggingFace { vocabulary, .. } => *vocabulary,
        }
    }

    /// Checks that a model with a vocabulary of `model` tokens has all tokens.
    ///
    /// # Errors
    ///
    /// If it has fewer tokens.
    pub fn check_vocabulary(&self, model: usize) -> Result<(), TextError> {
        let tokenizer = self.vocabulary();
        if tokenizer > model {
            return Err(TextError::Vocabulary { tokenizer, model });
        }
        Ok(())
    }

    /// Encodes a text, without tokens for its beginning or end.
    ///
    /// With a `tokenizer.json`, a long text is encoded in pieces of 64 KiB to limit memory, each with 1 KiB of the text around
    /// it. The tokens are those of the whole text, unless a token depends on more than that: a word of more than 1 KiB at the
    /// edge of a piece may be cut in two.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails, for instance because it has no token for unknown words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens)?;
        Ok(tokens)
    }

    /// Like [`encode`](Self::encode), appending to `tokens`. Returns the number of characters, without white space, that are
    /// in no token or in the unknown token.
    pub(crate) fn encode_into(
        &self,
        text: &str,
        tokens: &mut Vec<u32>,
    ) -> Result<usize, TextError> {
        match &self.0 {
            TokenizerKind::Bytes => {
                tokens.extend(text.bytes().map(u32::from));
                Ok(0)
            }
            TokenizerKind::HuggingFace {
                path,
                inner,
                unknown,
                ..
            } => caught(|| encode_pieces(inner, *unknown, text, tokens)).map_err(failed(path)),
        }
    }

    /// Decodes tokens. Invalid UTF-8 becomes `�`; tokens that a `tokenizer.json` does not have are skipped.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        match &self.0 {
            TokenizerKind::Bytes => {
                // The byte 255 is never valid UTF-8.
                let byte = |&token: &u32| u8::try_from(token).unwrap_or(u8::MAX);
                let bytes: Vec<u8> = tokens.iter().map(byte).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            TokenizerKind::HuggingFace { path, inner, .. } => {
                caught(|| inner.decode(tokens, false)).map_err(failed(path))
            }
        }
    }
}

/// Without the words of the vocabulary.
impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            TokenizerKind::Bytes => "Bytes",
            TokenizerKind::HuggingFace { .. } => "HuggingFace",
        };
        let mut shown = formatter.debug_struct(name);
        shown.field("vocabulary", &self.vocabulary());
        shown.finish_non_exhaustive()
    }
}

fn failed(path: &Path) -> impl FnOnce(tokenizers::Error) -> TextError {
    |source| TextError::Tokenizer(path.to_owned(), source)
}

/// The library panics at some damaged files.
fn caught<R>(run: impl FnOnce() -> tokenizers::Result<R>) -> tokenizers::Result<R> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("a panic without a message").into())
    })
}

/// The token for unknown text, if there is one.
fn unknown(tokenizer: &HuggingFace) -> Option<u32> {
    let name = match tokenizer.get_model() {
        ModelWrapper::BPE(model) => model.get_unk_token().as_deref(),
        ModelWrapper::WordPiece(model) => Some(&*model.unk_token),
        ModelWrapper::WordLevel(model) => Some(&*model.unk_token),
        // The crate does not expose its number; this is its usual name.
        ModelWrapper::Unigram(_) => Some("<unk>"),
    };
    tokenizer.token_to_id(name?)
}

/// The number of characters, without white space.
pub(crate) fn visible(text: &str) -> usize {
    let visible = text.chars().filter(|character| !character.is_whitespace());
    visible.count()
}

/// Encodes a text piece by piece. Returns the number of characters, without white space, that are in no token or in the
/// unknown token.
fn encode_pieces(
    tokenizer: &HuggingFace,
    unknown: Option<u32>,
    text: &str,
    tokens: &mut Vec<u32>,
) -> tokenizers::Result<usize> {
    let part = |from: usize, to: usize| text.get(from..to).map_or(0, visible);
    // Characters before `end` have been counted.
    let (mut lost, mut end) = (0, 0);
    for piece in pieces(text) {
        let encoding = tokenizer.encode(&text[piece.read.clone()], false)?;
        // A token belongs to the piece in which it begins, and may end in the next piece.
        let begin = end.max(piece.own.start);
        let is_last = piece.own.end == text.len();
        for (&token, &(from, to)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            let (from, to) = (from + piece.read.start, to + piece.read.start);
            if from < begin || (from >= piece.own.end && !is_last) {
                continue;
            }
            tokens.push(token);
            lost += part(end, from);
            if Some(token) == unknown {
                lost += part(from, to);
            }
            end = end.max(to);
        }
    }
    Ok(lost + part(end, text.len()))
}
