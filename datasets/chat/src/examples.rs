use std::path::Path;

use crate::{ChatError, Conversation, Conversations, Encoder, Example};

/// The examples of a data set, and how many there are of what.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("tokenizer.json"), r#"{"model": {"type": "WordLevel",
/// #     "vocab": {"[UNK]": 0, "One": 1, "two": 2, "</s>": 3}, "unk_token": "[UNK]"},
/// #     "pre_tokenizer": {"type": "Whitespace"}}"#)?;
/// # std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token": "</s>"}"#)?;
/// # let folder = folder.path();
/// use stovepipe_chat::{ChatTokenizer, Encoder, Examples};
///
/// let path = folder.join("train.jsonl");
/// let lines = "{\"text\": \"One two\"}\n{\"prompt\": \"One two \", \"completion\": \"two\"}\n";
/// std::fs::write(&path, lines)?;
///
/// let encoder = Encoder::new(ChatTokenizer::of_folder(folder)?, None);
/// let examples = Examples::read(&path, &encoder, None)?;
/// assert_eq!((examples.counts.kept, examples.counts.tokens, examples.counts.targets), (2, 7, 4));
/// let examples = Examples::read(&path, &encoder, Some(2))?;
/// assert_eq!((examples.counts.cut, examples.counts.dropped), (2, 1));
/// assert_eq!(examples.list[0].tokens, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examples {
    /// Examples with at least one target, in the order of the lines.
    pub list: Vec<Example>,
    /// How many there are.
    pub counts: Counts,
}

/// How many conversations, tokens and targets a data set has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Conversations read.
    pub read: usize,
    /// Examples kept.
    pub kept: usize,
    /// Examples with more tokens than the most allowed, which were cut.
    pub cut: usize,
    /// Examples dropped because they had no target, or none was left after the cut.
    pub dropped: usize,
    /// Tokens of the examples kept.
    pub tokens: usize,
    /// Targets of the examples kept.
    pub targets: usize,
    /// Tokens of the longest example kept.
    pub longest: usize,
}

impl Examples {
    /// Reads a file of JSON lines and encodes all its conversations.
    ///
    /// Tokens after the first `most_tokens` are cut, and examples without a target are dropped. The
    /// first error ends it.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, a line is no conversation or cannot be encoded, or `most_tokens`
    /// is below 2.
    pub fn read(
        path: &Path,
        encoder: &Encoder,
        most_tokens: Option<usize>,
    ) -> Result<Self, ChatError> {
        Self::new(Conversations::open(path)?, encoder, most_tokens)
    }

    /// Like [`read`](Self::read), with conversations from anywhere.
    ///
    /// # Errors
    ///
    /// The first error of the conversations, if one cannot be encoded, or if `most_tokens` is below
    /// 2.
    pub fn new(
        conversations: impl IntoIterator<Item = Result<Conversation, ChatError>>,
        encoder: &Encoder,
        most_tokens: Option<usize>,
    ) -> Result<Self, ChatError> {
        if let Some(value @ ..2) = most_tokens {
            return Err(ChatError::Setting {
                setting: "the most tokens of an example",
                value,
                range: "at least 2: the first token is not predicted",
            });
        }
        let mut examples = Self::default();
        for conversation in conversations {
            let example = encoder.encode(&conversation?)?;
            examples.push(example, most_tokens);
        }
        Ok(examples)
    }

    fn push(&mut self, mut example: Example, most_tokens: Option<usize>) {
        let counts = &mut self.counts;
        counts.read += 1;
        let is_cut = most_tokens.is_some_and(|most| example.cut(most));
        counts.cut += usize::from(is_cut);
        let targets = example.targets();
        if targets == 0 {
            counts.dropped += 1;
            return;
        }
        counts.kept += 1;
        counts.tokens += example.tokens.len();
        counts.targets += targets;
        counts.longest = counts.longest.max(example.tokens.len());
        self.list.push(example);
    }
}
