use std::{fmt, fs, path::Path, sync::Arc};

use tokenizers::{ModelWrapper, Tokenizer as HuggingFace};

use crate::{TextError, pieces::pieces, text::visible};

/// How many bytes there are, each a token.
const BYTES: usize = 256;

/// What makes tokens of text and text of tokens: bytes as they are, or a `tokenizer.json` of Hugging Face.
///
/// # Example
///
/// ```
/// use stovepipe_text::Tokenizer;
///
/// let bytes = Tokenizer::bytes();
/// assert_eq!(bytes.encode("né")?, [110, 195, 169]);
/// assert_eq!(bytes.decode(&[110, 195, 169])?, "né");
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer(Kind);

#[derive(Clone)]
enum Kind {
    Bytes,
    HuggingFace {
        /// Where it was read.
        path: Arc<Path>,
        inner: Arc<HuggingFace>,
        vocabulary: usize,
        /// The token for what is in no other.
        unknown: Option<u32>,
    },
}

impl Tokenizer {
    /// The bytes of a text, a vocabulary of 256.
    ///
    /// ```
    /// assert_eq!(stovepipe_text::Tokenizer::bytes().vocabulary(), 256);
    /// ```
    #[must_use]
    pub fn bytes() -> Self {
        Self(Kind::Bytes)
    }

    /// Reads a `tokenizer.json`, the file that `save` of Hugging Face's tokenizers writes and models come with.
    ///
    /// If it says that texts are to be cut or filled up to some length, that is left out: a text is taken as it is.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is no such file.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::Tokenizer;
    ///
    /// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizers/words.json");
    /// let words = Tokenizer::read(path.as_ref())?;
    /// assert_eq!(words.encode("the cat sat")?, [1, 2, 4]);
    /// assert_eq!(words.vocabulary(), 10); // with those that were added to the model's
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn read(path: &Path) -> Result<Self, TextError> {
        let json = fs::read(path).map_err(|source| TextError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&json, path).map_err(|error| TextError::NotATokenizer {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    fn parse(json: &[u8], path: &Path) -> tokenizers::Result<Self> {
        let mut inner = HuggingFace::from_bytes(json)?;
        inner.with_padding(None).with_truncation(None)?;
        // Numbers may be left out between tokens, so the largest counts, not how many there are.
        let largest = inner.get_vocab(true).into_values().max();
        let vocabulary = largest.map_or(0, |largest| largest as usize + 1);
        Ok(Self(Kind::HuggingFace {
            path: path.into(),
            unknown: unknown(&inner),
            inner: inner.into(),
            vocabulary,
        }))
    }

    /// How many tokens a model must know, those added to the tokenizer's model included: the largest token plus 1.
    ///
    /// ```
    /// let bytes = stovepipe_text::Tokenizer::bytes();
    /// assert!(bytes.encode("ÿ").unwrap().iter().all(|&token| (token as usize) < bytes.vocabulary()));
    /// ```
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match &self.0 {
            Kind::Bytes => BYTES,
            Kind::HuggingFace { vocabulary, .. } => *vocabulary,
        }
    }

    /// Checks that a model that knows `model` tokens knows all of these. It may know more.
    ///
    /// # Errors
    ///
    /// If it knows less.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::Tokenizer;
    ///
    /// assert!(Tokenizer::bytes().check_vocabulary(256).is_ok());
    /// let error = Tokenizer::bytes().check_vocabulary(128).unwrap_err();
    /// assert!(error.to_string().contains("a vocabulary of 256 tokens, but the model one of 128"));
    /// ```
    pub fn check_vocabulary(&self, model: usize) -> Result<(), TextError> {
        match self.vocabulary() {
            tokenizer if tokenizer > model => Err(TextError::Vocabulary { tokenizer, model }),
            _ => Ok(()),
        }
    }

    /// The tokens of a text, without any that mark its beginning or end.
    ///
    /// A `tokenizer.json` gets a long text in pieces of 64 KiB, so that it needs no more memory than for one. Each is read
    /// with 1 KiB of what is around it, and so the tokens are those of the whole text, unless it takes more than that to
    /// tell a token: at the edge of a piece, a word of more than 1 KiB may be cut in two.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails, as one does that comes to an unknown word and has no token for that.
    ///
    /// # Example
    ///
    /// ```
    /// assert_eq!(stovepipe_text::Tokenizer::bytes().encode("AB\n")?, [65, 66, 10]);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens)?;
        Ok(tokens)
    }

    /// [`encode`](Self::encode) to the end of `tokens`. Returns how many characters of the text, but for white space, no token
    /// stands for, or only the one for what is unknown.
    pub(crate) fn encode_into(
        &self,
        text: &str,
        tokens: &mut Vec<u32>,
    ) -> Result<usize, TextError> {
        match &self.0 {
            Kind::Bytes => {
                tokens.extend(text.bytes().map(u32::from));
                Ok(0)
            }
            Kind::HuggingFace {
                path,
                inner,
                unknown,
                ..
            } => encode_pieces(inner, *unknown, text, tokens).map_err(failed(path)),
        }
    }

    /// The text of tokens, such as a model has made. What is no text is shown as `�`; tokens that a `tokenizer.json` does not
    /// have are left out.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::Tokenizer;
    ///
    /// let bytes = Tokenizer::bytes();
    /// assert_eq!(bytes.decode(&[111, 107, 255, 1000, 33])?, "ok��!");
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        match &self.0 {
            Kind::Bytes => {
                // No character has the byte 255.
                let byte = |&token: &u32| u8::try_from(token).unwrap_or(u8::MAX);
                let bytes: Vec<u8> = tokens.iter().map(byte).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Kind::HuggingFace { path, inner, .. } => {
                inner.decode(tokens, false).map_err(failed(path))
            }
        }
    }
}

/// Without a vocabulary's words.
impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            Kind::Bytes => "Bytes",
            Kind::HuggingFace { .. } => "HuggingFace",
        };
        let mut shown = formatter.debug_struct(name);
        shown.field("vocabulary", &self.vocabulary());
        shown.finish_non_exhaustive()
    }
}

fn failed(path: &Path) -> impl FnOnce(tokenizers::Error) -> TextError {
    |error| TextError::Tokenizer {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// The token for what is in no other, if there is one.
fn unknown(tokenizer: &HuggingFace) -> Option<u32> {
    let name = match tokenizer.get_model() {
        ModelWrapper::BPE(model) => model.get_unk_token().as_deref(),
        ModelWrapper::WordPiece(model) => Some(&*model.unk_token),
        ModelWrapper::WordLevel(model) => Some(&*model.unk_token),
        // It has a number, which the crate does not show; this is what all call it.
        ModelWrapper::Unigram(_) => Some("<unk>"),
    };
    tokenizer.token_to_id(name?)
}

/// Encodes a text piece by piece. Returns how many characters, but for white space, are in no token, or in one that is
/// unknown.
fn encode_pieces(
    tokenizer: &HuggingFace,
    unknown: Option<u32>,
    text: &str,
    tokens: &mut Vec<u32>,
) -> tokenizers::Result<usize> {
    let part = |from: usize, to: usize| text.get(from..to).map_or(0, visible);
    // Characters before `end` are done: they are in a token, or are lost.
    let (mut lost, mut end) = (0, 0);
    for piece in pieces(text) {
        let encoding = tokenizer.encode(&text[piece.read.clone()], false)?;
        // A token belongs to the piece in which it begins. The last one of the piece before may reach into this one.
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
