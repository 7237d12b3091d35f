use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
};

/// Why a text cannot be read, encoded, or cut into windows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    // Files.
    /// A file or folder cannot be read.
    #[error("{path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A file is not UTF-8 text from this byte on.
    #[error(
        "{path} is not UTF-8: byte {1}, counted from 0, is invalid; convert the file or remove it",
        path = .0.display()
    )]
    NotUtf8(PathBuf, usize),
    /// A folder has no text file, whose name has one of these endings.
    #[error("{path} has no text files: no name in it or its subfolders ends with {1}", path = .0.display())]
    NoFiles(PathBuf, String),
    /// A file is empty, or all files of a folder are.
    #[error("{} is empty: there is nothing to train on", .0.display())]
    Empty(PathBuf),
    /// The embedded text is damaged. This should not happen.
    #[error("the embedded text cannot be read")]
    Embedded(#[source] io::Error),

    // Tokens.
    /// A file is not a `tokenizer.json`.
    #[error("{path} is not a tokenizer.json of Hugging Face: {1}", path = .0.display())]
    NotATokenizer(PathBuf, #[source] Box<dyn Error + Send + Sync>),
    /// The tokenizer of this file failed.
    #[error("{path}: the tokenizer failed: {1}", path = .0.display())]
    Tokenizer(PathBuf, #[source] Box<dyn Error + Send + Sync>),
    /// The tokenizer is for other texts, such as another language.
    #[error(
        "the tokenizer has no token for {lost} of the text's {characters} characters (white space not counted): \
         use a tokenizer for this kind of text"
    )]
    OtherText {
        /// Characters in no token, or in the unknown token.
        lost: usize,
        /// Characters, without white space.
        characters: usize,
    },
    /// The tokenizer has more tokens than the model.
    #[error(
        "the tokenizer has a vocabulary of {tokenizer} tokens, but the model one of {model}: \
         use the model's tokenizer, or a model with {tokenizer} tokens"
    )]
    Vocabulary {
        /// The largest token of the tokenizer, plus 1.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {place} of the text is {token}, but the vocabulary has {vocabulary} tokens")]
    Token {
        /// The token.
        token: u32,
        /// Its index in the text, counted from 0.
        place: usize,
        /// Tokens in the vocabulary.
        vocabulary: usize,
    },

    // Windows.
    /// A setting is out of its range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        range: &'static str,
    },
    /// A part of the text is shorter than a window.
    #[error(
        "the {part} has too few tokens, {tokens}: a window of {length} and its targets need {}: \
         use more text or shorter windows", length.saturating_add(1)
    )]
    TooShort {
        /// `text`, `training part` or `held-out part`.
        part: &'static str,
        /// Its tokens.
        tokens: usize,
        /// Input tokens of a window.
        length: usize,
    },
}

impl TextError {
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Unreadable(path, source)
    }
}
