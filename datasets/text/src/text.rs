use std::{
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::read::GzDecoder;

use crate::{TextError, Tokenizer, tokenizer::visible};

/// The embedded text. `data/README.md` has the credit.
const EMBEDDED: &[u8] = include_bytes!("../data/text.txt.gz");

const ENDINGS: [&str; 3] = ["txt", "text", "md"];

/// Some editors put it at the beginning of UTF-8 files.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A tokenizer may lose one in this many characters.
const MOST_LOST: usize = 10;

/// Text to train on: one or more documents in UTF-8.
///
/// ```
/// use stovepipe_text::{Text, Tokenizer};
///
/// let text = Text::embedded()?;
/// let tokens = text.encode(&Tokenizer::bytes())?;
/// assert_eq!(tokens.len(), text.bytes());
/// assert_eq!(Text::new(["naïve"]).bytes(), 6);
/// let tokens = Text::new(["a", "", "b\n"]).encode(&Tokenizer::bytes())?;
/// assert_eq!(Tokenizer::bytes().decode(&tokens)?, "a\n\nb\n");
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    /// All but the last end with a blank line.
    documents: Arc<[String]>,
}

impl Text {
    /// The embedded text; see the [crate's page](crate#credit).
    ///
    /// # Errors
    ///
    /// If it is damaged.
    pub fn embedded() -> Result<Self, TextError> {
        let mut text = String::new();
        (GzDecoder::new(EMBEDDED).read_to_string(&mut text)).map_err(TextError::Embedded)?;
        Ok(Self::new([text]))
    }

    /// Reads a file, or all text files of a folder and its subfolders.
    ///
    /// In a folder, files with names that end with `.txt`, `.text` or `.md` are read, in the order of their paths. Names that
    /// begin with a dot are skipped. Documents are separated by a blank line. A byte order mark is removed.
    ///
    /// # Errors
    ///
    /// If a file or folder cannot be read or is empty, a file is not UTF-8, or a folder has no text file.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// use stovepipe_text::Text;
    ///
    /// std::fs::write(folder.join("b.txt"), "the second")?;
    /// std::fs::write(folder.join("a.md"), "the first\n")?;
    /// let both = Text::read(folder)?;
    /// assert_eq!(both, Text::new(["the first\n", "the second"]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(path: &Path) -> Result<Self, TextError> {
        let mut files = Vec::new();
        match fs::metadata(path).map_err(TextError::unreadable(path))? {
            kind if kind.is_dir() => add_files(path, &mut files)?,
            _ => files.push(path.to_owned()),
        }
        if files.is_empty() {
            let endings = format!(".{}", ENDINGS.join(", ."));
            return Err(TextError::NoFiles(path.to_owned(), endings));
        }
        files.sort();
        let documents = files.iter().map(|file| read_file(file));
        let text = Self::new(documents.collect::<Result<Vec<_>, _>>()?);
        if text.bytes() == 0 {
            return Err(TextError::Empty(path.to_owned()));
        }
        Ok(text)
    }

    /// A text of documents, separated by a blank line. Empty documents are removed.
    #[must_use]
    pub fn new(documents: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let documents = documents.into_iter().map(Into::into);
        let mut documents: Vec<String> = documents.filter(|text| !text.is_empty()).collect();
        if let Some((_, others)) = documents.split_last_mut() {
            for document in others {
                let has_line_end = document.ends_with('\n');
                document.push_str(if has_line_end { "\n" } else { "\n\n" });
            }
        }
        let documents = documents.into();
        Self { documents }
    }

    /// The number of bytes.
    ///
    /// A perplexity per token, to the power of tokens over bytes, is a perplexity per byte. These can be compared between
    /// tokenizers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.documents.iter().map(String::len).sum()
    }

    /// The documents, as they are encoded.
    #[must_use]
    pub fn documents(&self) -> &[String] {
        &self.documents
    }

    /// Encodes each document with [`Tokenizer::encode`].
    ///
    /// # Errors
    ///
    /// If the tokenizer fails, or has no tokens for more than a tenth of the text's characters.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, TextError> {
        let mut tokens = Vec::new();
        let (mut lost, mut characters) = (0, 0);
        for document in self.documents.iter() {
            lost += tokenizer.encode_into(document, &mut tokens)?;
            characters += visible(document);
        }
        if lost * MOST_LOST > characters {
            return Err(TextError::OtherText { lost, characters });
        }
        Ok(tokens.into())
    }
}

/// Without the text.
impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Text");
        shown.field("documents", &self.documents.len());
        shown.field("bytes", &self.bytes());
        shown.finish_non_exhaustive()
    }
}

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), TextError> {
    for entry in fs::read_dir(folder).map_err(TextError::unreadable(folder))? {
        let entry = entry.map_err(TextError::unreadable(folder))?;
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // A link to a folder is not followed, since it might be a cycle.
        let is_folder = entry
            .file_type()
            .map_err(TextError::unreadable(&path))?
            .is_dir();
        if is_folder && !hidden {
            add_files(&path, files)?;
        } else if !hidden && is_text(&path) && !path.is_dir() {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    (ENDINGS.iter()).any(|known| ending.eq_ignore_ascii_case(known))
}

fn read_file(path: &Path) -> Result<String, TextError> {
    let kind = fs::metadata(path).map_err(TextError::unreadable(path))?;
    if !kind.is_file() {
        // Reading a device or a pipe may never end.
        let source = io::Error::other("neither a file nor a folder");
        return Err(TextError::unreadable(path)(source));
    }
    let bytes = fs::read(path).map_err(TextError::unreadable(path))?;
    let mut text = String::from_utf8(bytes)
        .map_err(|error| TextError::NotUtf8(path.to_owned(), error.utf8_error().valid_up_to()))?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.remove(0);
    }
    Ok(text)
}
