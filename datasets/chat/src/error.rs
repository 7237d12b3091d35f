use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why conversations cannot be read, rendered or encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    // Files.
    /// A file cannot be read.
    #[error("{path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A file is not UTF-8 text from this byte on.
    #[error(
        "{path} is not UTF-8: byte {1}, counted from 0, is invalid; convert the file",
        path = .0.display()
    )]
    NotUtf8(PathBuf, usize),
    /// A file of a model's folder is not JSON.
    #[error("{path} is not JSON: {1}; download it again", path = .0.display())]
    NotJson(PathBuf, #[source] serde_json::Error),

    // Lines of conversations.
    /// A line is longer than this number of bytes.
    #[error("{0} is longer than {1} bytes: JSON lines has one conversation a line")]
    LineTooLong(Place, usize),
    /// A line is not a JSON object.
    #[error("{0} is not a JSON object: {1}")]
    LineNotJson(Place, String),
    /// A line has none of the three forms.
    #[error(
        "{0} has none of the three forms: `messages`, `prompt` and `completion`, or `text` ({1}); \
         rename its keys"
    )]
    NoForm(Place, String),
    /// A value of a line is not what its key needs.
    #[error("{place}: {key} is {found}, but must be {expected}")]
    Value {
        /// The line.
        place: Place,
        /// The key, such as `messages[2].content`.
        key: String,
        /// What it is.
        found: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A conversation has no message of the assistant, so there is nothing to learn.
    #[error(
        "{0} has no message of the role `assistant`: there is nothing to learn; \
         remove it or rename the roles"
    )]
    NoAssistant(Place),
    /// A conversation is empty.
    #[error("{0}: {1} is empty: there is nothing to learn; remove the line")]
    Empty(Place, &'static str),

    // Templates.
    /// A model has no chat template.
    #[error(
        "{path} has no chat template: neither chat_template.jinja nor a `default` one in \
         tokenizer_config.json; use the folder of an instruction-tuned model, or give a template's file",
        path = .0.display()
    )]
    NoTemplate(PathBuf),
    /// There is no template, but a conversation has messages.
    #[error("messages need a chat template: give one, or use `prompt` and `completion`, or `text`")]
    MessagesWithoutTemplate,
    /// A template is not valid, or fails.
    #[error("{template}, line {line}: {message}")]
    Template {
        /// Where it is from.
        template: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A template refuses a conversation with `raise_exception`.
    #[error("{template}, line {line}, refuses the conversation: {message}")]
    Refused {
        /// Where it is from.
        template: String,
        /// The line, counted from 1.
        line: usize,
        /// The template's message.
        message: String,
    },
    /// A template does not end, or does too much.
    #[error("{template} took more than {instructions} instructions: it may loop for ever")]
    Endless {
        /// Where it is from.
        template: String,
        /// The limit.
        instructions: u64,
    },
    /// A template writes more text than allowed.
    #[error(
        "{template} wrote more than {bytes} bytes: shorten the conversation, or check the \
         template's loops"
    )]
    OutputTooLong {
        /// Where it is from.
        template: String,
        /// The limit.
        bytes: usize,
    },
    /// A day does not exist.
    #[error("{0} is not a day: write it as year, month and day, such as 2024-07-26")]
    NotADay(String),

    // Tokens.
    /// A folder has no `tokenizer.json`.
    #[error(
        "{path} has no tokenizer.json: use the folder of a model from Hugging Face with its tokenizer",
        path = .0.display()
    )]
    NoTokenizer(PathBuf),
    /// A folder has only SentencePiece's `tokenizer.model`.
    #[error(
        "{path} has a tokenizer.model, but no tokenizer.json: convert it in Python with \
         `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)` of transformers",
        path = .0.display()
    )]
    OnlySentencePiece(PathBuf),
    /// A file is not a `tokenizer.json`.
    #[error("{path} is not a tokenizer.json of Hugging Face: {1}", path = .0.display())]
    NotATokenizer(PathBuf, #[source] Box<dyn Error + Send + Sync>),
    /// The tokenizer of this file failed.
    #[error("{path}: the tokenizer failed: {1}", path = .0.display())]
    Tokenizer(PathBuf, #[source] Box<dyn Error + Send + Sync>),
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
    /// A text needs a token for its end, but the tokenizer has none.
    #[error(
        "{path} has no token for the end of a text: name one that tokenizer.json has as `eos_token` in \
         tokenizer_config.json",
        path = .0.display()
    )]
    NoEnd(PathBuf),
    /// The rendering up to a turn is not the beginning of the whole rendering.
    #[error(
        "the template does not begin with the turns before message {turn}, of the assistant: it \
         renders them in another way once more follow (some templates remove the thinking of \
         earlier turns); use a template that keeps them, or cut conversations so that this is the \
         last message"
    )]
    TurnsBefore {
        /// The message, counted from 1.
        turn: usize,
    },

    // Settings, and all conversations together.
    /// A setting is out of its range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: usize,
        /// Its range.
        range: &'static str,
    },
    /// A conversation of this line cannot be rendered or encoded.
    #[error("{0}: {1}")]
    At(Place, #[source] Box<ChatError>),
}

impl ChatError {
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Unreadable(path, source)
    }
}

/// Where a conversation is from: a line of a file, or the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(Option<(Arc<Path>, usize)>);

impl Place {
    pub(crate) fn line(path: Arc<Path>, line: usize) -> Self {
        Self(Some((path, line)))
    }
}

/// As `file.jsonl:12`, with the line counted from 1.
impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((path, line)) => write!(formatter, "{}:{line}", path.display()),
            None => formatter.write_str("a conversation"),
        }
    }
}
