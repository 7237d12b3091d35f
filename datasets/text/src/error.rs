use std::path::PathBuf;

/// Why a text cannot be read, made tokens of, or cut into windows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    // Files.
    /// The system would not read a file or folder.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A file that is not text, or not in UTF-8.
    #[error(
        "{} is not UTF-8: byte {offset}, counted from 0, begins no character; convert the file, or leave it out",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },

    /// A folder without a text file.
    #[error("{} has no text: no file in it or below it ends with {endings}", path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// What names of text files end with.
        endings: String,
    },

    /// A file without a byte, or a folder of such files.
    #[error("{} is empty: there is nothing to train on", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },

    /// The text that is part of the program is damaged. This is not expected to happen.
    #[error("the embedded text cannot be read")]
    Embedded(#[source] std::io::Error),

    // Tokens.
    /// A file that is no `tokenizer.json`.
    #[error("{} is no tokenizer.json of Hugging Face: {reason}", path.display())]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// What the `tokenizers` crate said.
        reason: String,
    },

    /// The tokenizer failed at a text or at tokens.
    #[error("{}: the tokenizer failed: {reason}", path.display())]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// What the `tokenizers` crate said.
        reason: String,
    },

    /// A tokenizer that is made for other texts: another language, or another kind.
    #[error(
        "the tokenizer has no token for {lost} of the text's {characters} characters (white space not counted): \
         its vocabulary is that of other texts"
    )]
    OtherText {
        /// Characters that no token, or the one for what is unknown, stands for.
        lost: usize,
        /// Characters, but for white space.
        characters: usize,
    },

    /// A tokenizer with more tokens than the model.
    #[error(
        "the tokenizer has a vocabulary of {tokenizer} tokens, but the model one of {model}: \
         take the tokenizer that the model was made for, or give the model {tokenizer}"
    )]
    Vocabulary {
        /// The largest token of the tokenizer, plus 1.
        tokenizer: usize,
        /// Tokens that the model knows.
        model: usize,
    },

    /// A token that is not in the vocabulary.
    #[error("token {place} of the text is {token}, but the vocabulary has {vocabulary} tokens")]
    Token {
        /// The token.
        token: u32,
        /// Its place in the text, counted from 0.
        place: usize,
        /// Tokens in the vocabulary, counted from 0.
        vocabulary: usize,
    },

    // Windows.
    /// A setting out of its range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        range: &'static str,
    },

    /// A part of the text that has no whole window.
    #[error(
        "the {part} has {tokens} tokens, but a window of {length} and its targets need {}: \
         take more text or shorter windows", length + 1
    )]
    TooShort {
        /// Which part: `text`, `training part` or `held-out part`.
        part: &'static str,
        /// Tokens that it has.
        tokens: usize,
        /// Input tokens of a window.
        length: usize,
    },
}
