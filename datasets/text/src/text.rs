use std::{
    ffi::OsStr,
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::read::GzDecoder;

use crate::{TextError, Tokenizer};

/// The embedded text; `data/README.md` has the credit.
const EMBEDDED: &[u8] = include_bytes!("../data/text.txt.gz");

/// What the names of a folder's text files end with, in small letters or capitals.
const ENDINGS: [&str; 3] = ["txt", "text", "md"];

/// What some editors begin a file of UTF-8 with. It is no part of the text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The characters that may be lost to a tokenizer: one in so many.
const MOST_LOST: usize = 10;

/// Text to train on: one or more documents in UTF-8.
///
/// # Example
///
/// ```
/// use stovepipe_text::{Text, Tokenizer};
///
/// let text = Text::embedded()?;
/// let tokens = text.encode(&Tokenizer::bytes())?;
/// assert_eq!(tokens.len(), text.bytes());
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    /// Each but the last ends with a blank line.
    documents: Arc<[String]>,
}

impl Text {
    /// The text that is part of the program; see the [crate's page](crate#credit) for what it is.
    ///
    /// # Errors
    ///
    /// When it is damaged.
    ///
    /// # Example
    ///
    /// ```
    /// let text = stovepipe_text::Text::embedded()?;
    /// assert!(text.bytes() > 500_000);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn embedded() -> Result<Self, TextError> {
        let mut text = String::new();
        (GzDecoder::new(EMBEDDED).read_to_string(&mut text)).map_err(TextError::Embedded)?;
        Ok(Self::new([text]))
    }

    /// Reads a file, or all text files of a folder and of the folders in it.
    ///
    /// A folder's text files are those whose names end with `.txt`, `.text` or `.md`; what begins with a dot is left out. They
    /// follow each other in the order of their paths, a blank line between one and the next. A file that is named itself may
    /// be called anything. A byte order mark is left out; else bytes are as they are.
    ///
    /// # Errors
    ///
    /// If a file or folder cannot be read, a file is not UTF-8, a folder has no text file, or there is nothing in them.
    ///
    /// # Example
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
        match fs::metadata(path).map_err(unreadable(path))? {
            kind if kind.is_dir() => add_files(path, &mut files)?,
            _ => files.push(path.to_owned()),
        }
        if files.is_empty() {
            return Err(TextError::NoFiles {
                path: path.to_owned(),
                endings: ENDINGS.map(|ending| format!(".{ending}")).join(", "),
            });
        }
        files.sort();
        let documents: Vec<_> = files
            .iter()
            .map(|file| read_file(file))
            .collect::<Result<_, _>>()?;
        let text = Self::new(documents);
        match text.bytes() {
            0 => Err(TextError::Empty {
                path: path.to_owned(),
            }),
            _ => Ok(text),
        }
    }

    /// The text of documents, without those that are empty, and with a blank line between one and the next.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::{Text, Tokenizer};
    ///
    /// let tokens = Text::new(["a", "", "b\n"]).encode(&Tokenizer::bytes())?;
    /// assert_eq!(Tokenizer::bytes().decode(&tokens)?, "a\n\nb\n");
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn new(documents: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let documents = documents.into_iter().map(Into::into);
        let mut documents: Vec<String> = documents.filter(|text| !text.is_empty()).collect();
        if let Some((_, others)) = documents.split_last_mut() {
            for document in others {
                let line_end = if document.ends_with('\n') {
                    "\n"
                } else {
                    "\n\n"
                };
                document.push_str(line_end);
            }
        }
        Self {
            documents: documents.into(),
        }
    }

    /// How many bytes it has.
    ///
    /// With it, perplexities under different tokenizers can be compared: each to the power of tokens over bytes is one per
    /// byte.
    ///
    /// ```
    /// assert_eq!(stovepipe_text::Text::new(["naïve"]).bytes(), 6);
    /// ```
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.documents.iter().map(String::len).sum()
    }

    /// The text as tokens, document by document, and each as [`Tokenizer::encode`] does it: a long one in pieces.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails, or has no tokens for more than a tenth of the text's characters.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::{Text, Tokenizer};
    ///
    /// let tokens = Text::new(["Hi!"]).encode(&Tokenizer::bytes())?;
    /// assert_eq!(*tokens, [72, 105, 33]);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Arc<[u32]>, TextError> {
        let mut tokens = Vec::new();
        let (mut lost, mut characters) = (0, 0);
        for document in self.documents.iter() {
            lost += tokenizer.encode_into(document, &mut tokens)?;
            characters += visible(document);
        }
        match lost * MOST_LOST > characters {
            true => Err(TextError::OtherText { lost, characters }),
            false => Ok(tokens.into()),
        }
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

/// How many characters are to be seen.
pub(crate) fn visible(text: &str) -> usize {
    let seen = text.chars().filter(|character| !character.is_whitespace());
    seen.count()
}

/// Adds the text files of a folder and of those in it.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), TextError> {
    for entry in fs::read_dir(folder).map_err(unreadable(folder))? {
        let entry = entry.map_err(unreadable(folder))?;
        let (path, hidden) = (entry.path(), begins_with_dot(&entry.file_name()));
        // A link to a folder is not followed: it might lead back here.
        let is_folder = entry.file_type().map_err(unreadable(&path))?.is_dir();
        if is_folder && !hidden {
            add_files(&path, files)?;
        } else if !hidden && is_text(&path) && !path.is_dir() {
            files.push(path);
        }
    }
    Ok(())
}

fn begins_with_dot(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    ENDINGS
        .iter()
        .any(|known| ending.eq_ignore_ascii_case(known))
}

fn read_file(path: &Path) -> Result<String, TextError> {
    let kind = fs::metadata(path).map_err(unreadable(path))?;
    if !kind.is_file() {
        // A device or a pipe may never end.
        let source = io::Error::other("neither a file nor a folder");
        return Err(unreadable(path)(source));
    }
    let bytes = fs::read(path).map_err(unreadable(path))?;
    let mut text = String::from_utf8(bytes).map_err(|error| TextError::NotUtf8 {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.remove(0);
    }
    Ok(text)
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> TextError {
    let path = path.to_owned();
    |source| TextError::Unreadable { path, source }
}
