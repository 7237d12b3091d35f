use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::Arc,
};

use crate::{ChatError, Conversation, Place};

/// Reads conversations from JSON lines, one after the other: an iterator.
///
/// A line has one [`Conversation`]. Blank lines are skipped. An error names the file and the line.
/// After a line that is no conversation, the next ones can be read; after another error, the
/// iterator ends.
///
/// ```
/// use stovepipe_chat::Conversations;
///
/// let lines = "{\"text\": \"One\"}\n\n{\"txt\": \"Two\"}\n";
/// let mut conversations = Conversations::new(lines.as_bytes(), "two.jsonl");
/// assert!(conversations.next().is_some_and(|first| first.is_ok()));
/// let error = conversations.next().and_then(Result::err).ok_or("no error")?;
/// assert!(error.to_string().starts_with("two.jsonl:3 has none of the three forms"));
/// assert!(conversations.next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Conversations<R = BufReader<File>> {
    /// None after the end or an error of the file.
    reader: Option<R>,
    path: Arc<Path>,
    /// Lines read.
    lines: usize,
    line: Vec<u8>,
}

impl Conversations {
    /// The largest number of bytes of a line: 16 MiB.
    pub const LONGEST_LINE: usize = 1 << 24;

    /// Opens a file of JSON lines.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    ///
    /// ```
    /// use stovepipe_chat::Conversations;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("train.jsonl");
    /// std::fs::write(&path, r#"{"prompt": "2 + 2 =", "completion": " 4"}"#)?;
    /// let conversations = Conversations::open(&path)?.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(conversations.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: &Path) -> Result<Self, ChatError> {
        let file = File::open(path).map_err(ChatError::unreadable(path))?;
        Ok(Self::new(BufReader::new(file), path))
    }
}

impl<R: BufRead> Conversations<R> {
    /// From any reader. Errors name it `path`.
    pub fn new(reader: R, path: impl AsRef<Path>) -> Self {
        Self {
            reader: Some(reader),
            path: path.as_ref().into(),
            lines: 0,
            line: Vec::new(),
        }
    }

    /// Reads the next line. It is false at the end.
    fn read_line(&mut self) -> Result<bool, ChatError> {
        self.line.clear();
        let Some(reader) = &mut self.reader else {
            return Ok(false);
        };
        // The line's end, and one byte to see that the line is too long.
        let longest = Conversations::LONGEST_LINE;
        let mut limited = reader.take(longest as u64 + 2);
        let read = limited.read_until(b'\n', &mut self.line);
        let bytes = read.map_err(ChatError::unreadable(&self.path))?;
        self.lines += usize::from(bytes > 0);
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if text.len() > longest {
            return Err(ChatError::LineTooLong(self.place(), longest));
        }
        // Some editors write a byte order mark.
        if self.lines == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
            self.line.drain(..3);
        }
        Ok(bytes > 0)
    }

    fn place(&self) -> Place {
        Place::line(self.path.clone(), self.lines)
    }
}

impl<R: BufRead> Iterator for Conversations<R> {
    type Item = Result<Conversation, ChatError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.read_line() {
                Ok(true) if self.line.trim_ascii().is_empty() => {}
                Ok(true) => return Some(Conversation::parse_at(&self.line, self.place())),
                Ok(false) => {
                    self.reader = None;
                    return None;
                }
                Err(error) => {
                    self.reader = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Reads a text file.
pub(crate) fn read_text(path: &Path) -> Result<String, ChatError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(ChatError::unreadable(path))?;
    String::from_utf8(bytes)
        .map_err(|error| ChatError::NotUtf8(path.to_owned(), error.utf8_error().valid_up_to()))
}

/// Whether a file is there. A file that is, but cannot be read, is an error later.
pub(crate) fn exists(path: &Path) -> Result<bool, ChatError> {
    let exists = path.try_exists();
    exists.map_err(|error: io::Error| ChatError::Unreadable(path.to_owned(), error))
}
