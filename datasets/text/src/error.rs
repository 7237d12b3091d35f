use std::{error::Error, path::PathBuf};

/// Why a text cannot be read, encoded, or cut into windows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    // Files.
    /// A file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A file is not UTF-8 text.
    #[error(
        "{} is not UTF-8: byte {offset}, counted from 0, is invalid; convert the file or remove it",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first invalid byte.
        offset: usize,
    },

    /// A folder has no text file.
    #[error("{} has no text files: no name in it or its subfolders ends with {endings}", path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The endings of text files.
        endings: String,
    },

    /// A file is empty, or all files of a folder are.
    #[error("{} is empty: there is nothing to train on", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },

    /// The embedded text is damaged. This should not happen.
    #[error("the embedded text cannot be read")]
    Embedded(#[source] std::io::Error),

    // Tokens.
    /// A file is not a `tokenizer.json`.
    #[error("{} is not a tokenizer.json of Hugging Face: {source}", path.display())]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// The error of the `tokenizers` crate.
        source: Box<dyn Error + Send + Sync>,
    },

    /// The tokenizer failed.
    #[error("{}: the tokenizer failed: {source}", path.display())]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// The error of the `tokenizers` crate.
        source: Box<dyn Error + Send + Sync>,
    },

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
        "the {part} has {tokens} tokens, but a window of {length} and its targets need {}: \
         use more text or shorter windows", length + 1
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
