use std::{
    error::Error as _,
    fmt, io,
    path::{Path, PathBuf},
    thread,
};

use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig};
use serde_json::Value as Json;

use crate::{
    ChatError, Conversation, Day, Message, SpecialTokens,
    conversation::Form,
    limits::{LONGEST_OUTPUT, LONGEST_TEMPLATE, MOST_INSTRUCTIONS, STACK},
    python,
    reader::{exists, read_text},
    special::config,
};

/// The only template of the environment.
const NAME: &str = "chat";

/// A chat template: how a model's conversations are written as one text.
///
/// It renders the bytes that `apply_chat_template` of Hugging Face's transformers renders: Jinja
/// with `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `tojson` and the methods
/// of Python's strings. `{% generation %}` marks nothing. `strftime_now` fails unless a
/// [day](Self::with_day) is given, because texts would differ from day to day. A rendering may have
/// 16 MiB and take a million instructions.
///
/// ```
/// use stovepipe_chat::{ChatTemplate, Message, SpecialTokens};
///
/// let source = "
/// {%- for message in messages %}
/// {{ message.role }}: {{ message.content | trim }}{{ eos_token }}
/// {% endfor %}
/// {% if add_generation_prompt %}
/// assistant:
/// {%- endif %}";
/// let tokens = SpecialTokens::new([("eos_token", "</s>")]);
/// let template = ChatTemplate::new(source, "an example", &tokens)?;
/// let messages = [Message::new("user", " Hi ")];
/// assert_eq!(template.render(&messages, true)?, "user: Hi</s>\nassistant:");
/// # Ok::<(), stovepipe_chat::ChatError>(())
/// ```
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Where it is from, for errors.
    origin: String,
    tokens: SpecialTokens,
}

impl ChatTemplate {
    /// Compiles a template. Errors name it `origin`.
    ///
    /// # Errors
    ///
    /// If it is not valid.
    ///
    /// ```
    /// use stovepipe_chat::{ChatTemplate, SpecialTokens};
    ///
    /// let error = ChatTemplate::new("Hi\n{% for %}", "an example", &SpecialTokens::default()).unwrap_err();
    /// assert!(error.to_string().starts_with("an example, line 2: syntax error"));
    /// ```
    pub fn new(source: &str, origin: &str, tokens: &SpecialTokens) -> Result<Self, ChatError> {
        let mut template = Self {
            environment: Environment::new(),
            origin: origin.to_owned(),
            tokens: tokens.clone(),
        };
        if source.len() > LONGEST_TEMPLATE {
            let message = format!("it has more than {LONGEST_TEMPLATE} bytes: is this a template?");
            return Err(template.failed(1, message));
        }
        let set_up = template.with_large_stack(|| environment(source))?;
        match set_up {
            Ok(environment) => template.environment = environment,
            Err(error) => return Err(template.failure(&error)),
        }
        Ok(template)
    }

    /// Reads the template of a model's folder: `chat_template.jinja`, else the `chat_template` in
    /// `tokenizer_config.json`, of several the one named `default`. The special tokens are those of
    /// [`SpecialTokens::read`].
    ///
    /// # Errors
    ///
    /// If there is no template, it is not valid, or a file cannot be read.
    ///
    /// ```
    /// use stovepipe_chat::{ChatTemplate, Message};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let config = r#"{"eos_token": "</s>", "chat_template": "{{ messages[0].content }}{{ eos_token }}"}"#;
    /// std::fs::write(folder.path().join("tokenizer_config.json"), config)?;
    /// let template = ChatTemplate::of_folder(folder.path())?;
    /// assert_eq!(template.render(&[Message::new("user", "Hi")], false)?, "Hi</s>");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_folder(folder: &Path) -> Result<Self, ChatError> {
        let path = folder.join("chat_template.jinja");
        if exists(&path)? {
            return Self::read(&path, folder);
        }
        let (path, config) = config(folder)?;
        let source = config.get("chat_template").and_then(default_template);
        let source = source.ok_or_else(|| ChatError::NoTemplate(PathBuf::from(folder)))?;
        let tokens = SpecialTokens::read(folder)?;
        let origin = format!("the chat_template of {}", path.display());
        Self::new(source, &origin, &tokens)
    }

    /// Reads a template from a file, with the special tokens of a model's folder.
    ///
    /// # Errors
    ///
    /// If it is not valid, or a file cannot be read.
    ///
    /// ```
    /// use stovepipe_chat::{ChatTemplate, Message};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("mine.jinja");
    /// std::fs::write(&path, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\n")?;
    /// let template = ChatTemplate::read(&path, folder.path())?;
    /// assert_eq!(template.render(&[Message::new("user", "Hi")], false)?, "<user>Hi");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(path: &Path, folder: &Path) -> Result<Self, ChatError> {
        let source = read_text(path)?;
        let tokens = SpecialTokens::read(folder)?;
        Self::new(&source, &path.display().to_string(), &tokens)
    }

    /// The same template with a day for `strftime_now`. It has no time of day.
    ///
    /// ```
    /// use stovepipe_chat::{ChatTemplate, SpecialTokens};
    ///
    /// let source = "Today Date: {{ strftime_now('%d %b %Y') }}";
    /// let template = ChatTemplate::new(source, "an example", &SpecialTokens::default())?;
    /// assert!(template.render(&[], false).is_err());
    /// let template = template.with_day("2024-07-26".parse()?);
    /// assert_eq!(template.render(&[], false)?, "Today Date: 26 Jul 2024");
    /// # Ok::<(), stovepipe_chat::ChatError>(())
    /// ```
    #[must_use]
    pub fn with_day(mut self, day: Day) -> Self {
        let strftime = move |format: &str| -> Result<String, Error> {
            let written = day.strftime(format);
            written.map_err(|code| {
                let message =
                    format!("strftime_now: a day has no {code}; take it out of the template");
                Error::new(ErrorKind::InvalidOperation, message)
            })
        };
        self.environment.add_function("strftime_now", strftime);
        self
    }

    /// Runs what compiles and renders in a thread with a large stack.
    pub(crate) fn with_large_stack<T: Send>(
        &self,
        run: impl FnOnce() -> T + Send,
    ) -> Result<T, ChatError> {
        let run = thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK);
            let thread = thread.spawn_scoped(scope, run)?;
            let panicked = |_| io::Error::other("the template engine panicked");
            thread.join().map_err(panicked)
        });
        run.map_err(|error: io::Error| self.failed(1, error.to_string()))
    }

    /// Renders messages as one text. With a generation prompt, it ends where the assistant begins
    /// to speak.
    ///
    /// # Errors
    ///
    /// If the template fails, refuses the messages, or takes too long.
    ///
    /// ```
    /// use stovepipe_chat::{ChatTemplate, Message, SpecialTokens};
    ///
    /// let source = "{% if messages[0].role != 'user' %}{{ raise_exception('no user') }}{% endif %}Hi";
    /// let template = ChatTemplate::new(source, "an example", &SpecialTokens::default())?;
    /// let error = template.render(&[Message::new("system", "Be brief.")], false).unwrap_err();
    /// let expected = "an example, line 1, refuses the conversation: no user";
    /// assert_eq!(error.to_string(), expected);
    /// # Ok::<(), stovepipe_chat::ChatError>(())
    /// ```
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let tools = Value::from(());
        self.with_large_stack(|| self.render_with(messages, &tools, add_generation_prompt))?
    }

    /// Like [`render`](Self::render), with the messages and tools of a conversation. A conversation
    /// without messages is its text as it is.
    ///
    /// # Errors
    ///
    /// If the template fails, refuses the messages, or takes too long.
    ///
    /// ```
    /// use stovepipe_chat::{ChatTemplate, Conversation, SpecialTokens};
    ///
    /// let source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}";
    /// let template = ChatTemplate::new(source, "an example", &SpecialTokens::default())?;
    /// let line = r#"{"tools": [{"name": "add"}], "messages": [{"role": "assistant", "content": ""}]}"#;
    /// let text = template.render_conversation(&Conversation::parse(line)?, false)?;
    /// assert_eq!(text, r#"{"name": "add"}"#);
    /// # Ok::<(), stovepipe_chat::ChatError>(())
    /// ```
    pub fn render_conversation(
        &self,
        conversation: &Conversation,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        match &conversation.form {
            Form::Messages {
                messages, tools, ..
            } => {
                self.with_large_stack(|| self.render_with(messages, tools, add_generation_prompt))?
            }
            Form::Completion { prompt, completion } => Ok([&**prompt, completion].concat()),
            Form::Text(text) => Ok(text.clone()),
        }
    }

    /// Like [`render`](Self::render), with tools: a list, or none. Needs a [large
    /// stack](Self::with_large_stack).
    pub(crate) fn render_with(
        &self,
        messages: &[Message],
        tools: &Value,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let messages: Value = messages.iter().map(Message::value).collect();
        let tokens = self.tokens.iter();
        let tokens = tokens.map(|(name, text)| (name, Value::from(text)));
        let others = [
            ("messages", messages),
            ("tools", tools.clone()),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        let context = Value::from_pairs(tokens.chain(others));

        let mut output = Output::default();
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| {
            template
                .render_captured_to(context, &mut output)
                .map(|_| ())
        });
        if output.is_too_long {
            return Err(ChatError::OutputTooLong {
                template: self.origin.clone(),
                bytes: LONGEST_OUTPUT,
            });
        }
        rendered.map_err(|error| self.failure(&error))?;
        // Templates write strings. Other bytes would be a defect of the engine.
        Ok(String::from_utf8_lossy(&output.bytes).into_owned())
    }

    fn failure(&self, error: &Error) -> ChatError {
        let template = self.origin.clone();
        let line = error.line().unwrap_or(1);
        let mut source = error.source();
        while let Some(inner) = source {
            if let Some(Raised(message)) = inner.downcast_ref() {
                return ChatError::Refused {
                    template,
                    line,
                    message: message.clone(),
                };
            }
            source = inner.source();
        }
        if error.kind() == ErrorKind::OutOfFuel {
            return ChatError::Endless {
                template,
                instructions: MOST_INSTRUCTIONS,
            };
        }
        let kind = error.kind();
        let message = match error.detail() {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        };
        self.failed(line, message)
    }

    fn failed(&self, line: usize, message: String) -> ChatError {
        ChatError::Template {
            template: self.origin.clone(),
            line,
            message,
        }
    }
}

/// Without the source.
impl fmt::Debug for ChatTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ChatTemplate");
        shown.field("origin", &self.origin);
        shown.finish_non_exhaustive()
    }
}

/// Compiles a template in an environment as transformers sets it up.
fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build()?);
    environment.set_fuel(Some(MOST_INSTRUCTIONS));
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("trim", python::trim);
    environment.add_filter("indent", python::indent_lines);
    environment.add_test("sequence", python::is_sequence);
    // Jinja has it only as an extension, which transformers does not use.
    environment.remove_global("debug");
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", refuse_strftime);
    environment.add_template_owned(NAME, source_for_minijinja(source))?;
    Ok(environment)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(raised))
}

fn refuse_strftime(_: &Value) -> Result<Value, Error> {
    let message = "strftime_now: the text would differ from day to day; \
                   give the day that the template is to write";
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// What a template raised.
#[derive(Debug)]
struct Raised(String);

impl std::error::Error for Raised {}

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A rendering up to the largest size.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > LONGEST_OUTPUT {
            self.is_too_long = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The template in `tokenizer_config.json`: a string, or a list of templates with names.
fn default_template(value: &Json) -> Option<&str> {
    let is_default = |entry: &&Json| entry.get("name").and_then(Json::as_str) == Some("default");
    match value {
        Json::String(source) => Some(source),
        Json::Array(list) => list.iter().find(is_default)?.get("template")?.as_str(),
        _ => None,
    }
}

/// The source with the few things changed that minijinja reads in another way than Jinja:
///
/// - Jinja reads all ends of lines as `\n`.
/// - The tags `generation` and `endgeneration` of transformers become tags that only begin and end a
///   scope. So the white space around them is removed in the same way.
/// - Jinja keeps the end of the line after `{% raw %}`.
fn source_for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut written = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        let end = word.find(|character: char| !character.is_alphanumeric());
        let (name, after) = word.split_at(end.unwrap_or(word.len()));
        let end = after.trim_start();
        let is_alone = ["%}", "-%}", "+%}"]
            .iter()
            .any(|marker| end.starts_with(marker));
        let (name, end) = match name {
            "generation" if is_alone => ("with", after),
            "endgeneration" if is_alone => ("endwith", after),
            "raw" if end.starts_with("%}") => ("raw +", end),
            _ => (name, after),
        };
        let begin = &tag[..tag.len() - word.len()];
        written.extend([before, "{%", begin, name]);
        rest = end;
    }
    written + rest
}
