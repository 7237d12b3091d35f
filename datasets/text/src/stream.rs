use crate::{TextError, Tokenizer};

/// Decodes tokens one by one. A character of several tokens appears with the last of them.
///
/// ```
/// use stovepipe_text::{TextStream, Tokenizer};
///
/// let mut stream = TextStream::new(Tokenizer::bytes());
/// let texts = "né".bytes().map(|byte| stream.push(byte.into()));
/// assert_eq!(texts.collect::<Result<Vec<_>, _>>()?, ["n", "", "é"]);
/// stream.push(0xc3)?;
/// assert_eq!(stream.finish()?, "�");
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    tokens: Vec<u32>,
    /// Where the tokens begin that the next one is decoded with: words may look different alone.
    begin: usize,
    /// Where those begin whose text is still to come.
    shown: usize,
}

impl TextStream {
    /// A text without tokens.
    #[must_use]
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            tokens: Vec::new(),
            begin: 0,
            shown: 0,
        }
    }

    /// The text that a token adds.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails.
    pub fn push(&mut self, token: u32) -> Result<String, TextError> {
        self.tokens.push(token);
        let text = self.rest()?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        (self.begin, self.shown) = (self.shown, self.tokens.len());
        Ok(text)
    }

    /// The rest: characters that are not complete.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails.
    pub fn finish(self) -> Result<String, TextError> {
        self.rest()
    }

    fn rest(&self) -> Result<String, TextError> {
        let before = self
            .tokenizer
            .decode(&self.tokens[self.begin..self.shown])?;
        let all = self.tokenizer.decode(&self.tokens[self.begin..])?;
        Ok(all.get(before.len()..).unwrap_or_default().to_owned())
    }
}
