use minijinja::{Value, value::ValueKind};

use crate::{ChatError, Place};

/// Who says this is the model, whose tokens are learned.
const ASSISTANT: &str = "assistant";

/// Other names for the thinking of a message. Templates read the first one.
const THINKING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message of a conversation: its role, its content, and any other keys that templates read.
///
/// ```
/// use stovepipe_chat::Message;
///
/// let message = Message::new("user", "What is a pipeline?");
/// assert_eq!(message.role(), "user");
/// ```
#[derive(Clone, Debug)]
pub struct Message {
    role: String,
    /// As templates see it.
    value: Value,
}

impl Message {
    /// A message of a role, such as `system`, `user` or `assistant`.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Self {
        Self {
            role: role.to_owned(),
            value: Value::from_pairs([("role", role), ("content", content)]),
        }
    }

    /// Its role.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    pub(crate) fn value(&self) -> Value {
        self.value.clone()
    }

    pub(crate) fn is_assistant(&self) -> bool {
        self.role == ASSISTANT
    }
}

/// One conversation to learn from, in one of three forms.
///
/// | form | a line of JSON | learned |
/// |---|---|---|
/// | messages | `{"messages": [{"role": "user", "content": "Hi"}, …]}` | what the assistant says |
/// | a prompt and its completion | `{"prompt": "2 + 2 =", "completion": " 4"}` | the completion |
/// | a text | `{"text": "Once upon a time …"}` | all of it |
///
/// A `prompt` and a `completion` may be lists of messages, too: then the assistant's messages of
/// the completion are learned. Content may be a list of parts, `{"type": "text", "text": "Hi"}`;
/// their texts are joined. Content may be missing or null, such as with `tool_calls`. A line with
/// messages may have a list of `tools`, which its template may write. Other keys of messages go to
/// the template as they are, without nulls. Other keys of the line are ignored, and of two forms,
/// the first one of the table counts.
#[derive(Clone, Debug)]
pub struct Conversation {
    pub(crate) place: Place,
    pub(crate) form: Form,
}

#[derive(Clone, Debug)]
pub(crate) enum Form {
    Messages {
        messages: Vec<Message>,
        /// The messages before this one are not learned.
        learned_from: usize,
        /// A list, or none.
        tools: Value,
    },
    Completion {
        prompt: String,
        completion: String,
    },
    Text(String),
}

impl Conversation {
    /// Of messages. All messages of the assistant are learned.
    ///
    /// # Errors
    ///
    /// If there is no message of the assistant.
    ///
    /// ```
    /// use stovepipe_chat::{Conversation, Message};
    ///
    /// let question = Message::new("user", "What is a pipeline?");
    /// assert!(Conversation::messages(vec![question.clone()]).is_err());
    /// let answer = Message::new("assistant", "Stages that work at the same time.");
    /// assert!(Conversation::messages(vec![question, answer]).is_ok());
    /// ```
    pub fn messages(messages: Vec<Message>) -> Result<Self, ChatError> {
        Self::of_messages(Place::default(), messages, 0, Value::from(()))
    }

    fn of_messages(
        place: Place,
        messages: Vec<Message>,
        learned_from: usize,
        tools: Value,
    ) -> Result<Self, ChatError> {
        if messages.is_empty() {
            return Err(ChatError::Empty(place, "`messages`"));
        }
        if !messages
            .iter()
            .skip(learned_from)
            .any(Message::is_assistant)
        {
            return Err(ChatError::NoAssistant(place));
        }
        let form = Form::Messages {
            messages,
            learned_from,
            tools,
        };
        Ok(Self { place, form })
    }

    /// Of a prompt and its completion. No template is used.
    ///
    /// # Errors
    ///
    /// If the completion is empty.
    ///
    /// ```
    /// use stovepipe_chat::Conversation;
    ///
    /// assert!(Conversation::completion("2 + 2 =", " 4").is_ok());
    /// assert!(Conversation::completion("2 + 2 =", "").is_err());
    /// ```
    pub fn completion(
        prompt: impl Into<String>,
        completion: impl Into<String>,
    ) -> Result<Self, ChatError> {
        Self::of_completion(Place::default(), prompt.into(), completion.into())
    }

    fn of_completion(place: Place, prompt: String, completion: String) -> Result<Self, ChatError> {
        if completion.is_empty() {
            return Err(ChatError::Empty(place, "`completion`"));
        }
        let form = Form::Completion { prompt, completion };
        Ok(Self { place, form })
    }

    /// Of a text. No template is used.
    ///
    /// # Errors
    ///
    /// If it is empty.
    ///
    /// ```
    /// assert!(stovepipe_chat::Conversation::text("Once upon a time").is_ok());
    /// ```
    pub fn text(text: impl Into<String>) -> Result<Self, ChatError> {
        Self::of_text(Place::default(), text.into())
    }

    fn of_text(place: Place, text: String) -> Result<Self, ChatError> {
        if text.is_empty() {
            return Err(ChatError::Empty(place, "`text`"));
        }
        let form = Form::Text(text);
        Ok(Self { place, form })
    }

    /// Parses a line of JSON.
    ///
    /// # Errors
    ///
    /// If it has none of the three forms, or there is nothing to learn.
    ///
    /// ```
    /// use stovepipe_chat::Conversation;
    ///
    /// Conversation::parse(r#"{"prompt": "2 + 2 =", "completion": " 4"}"#)?;
    /// let error = Conversation::parse(r#"{"question": "2 + 2 ="}"#).unwrap_err();
    /// assert!(error.to_string().contains("its keys are `question`"));
    /// # Ok::<(), stovepipe_chat::ChatError>(())
    /// ```
    pub fn parse(line: &str) -> Result<Self, ChatError> {
        Self::parse_at(line.as_bytes(), Place::default())
    }

    pub(crate) fn parse_at(line: &[u8], place: Place) -> Result<Self, ChatError> {
        // Not as `serde_json::Value`: templates write objects in the order of their keys.
        let object: Value = match serde_json::from_slice(line) {
            Ok(object) => object,
            Err(error) => return Err(ChatError::LineNotJson(place, error.to_string())),
        };
        if object.kind() != ValueKind::Map {
            let found = format!("it is {}", kind(&object));
            return Err(ChatError::LineNotJson(place, found));
        }
        Line { object, place }.conversation()
    }
}

/// A line that is an object.
struct Line {
    object: Value,
    place: Place,
}

impl Line {
    fn conversation(self) -> Result<Conversation, ChatError> {
        if let Some(messages) = self.get("messages") {
            let messages = self.messages("messages", &messages)?;
            let tools = self.tools()?;
            return Conversation::of_messages(self.place, messages, 0, tools);
        }
        if let (Some(prompt), Some(completion)) = (self.get("prompt"), self.get("completion")) {
            return self.completion(&prompt, &completion);
        }
        if let Some(text) = self.get("text") {
            let text = self.string("text", &text)?;
            return Conversation::of_text(self.place, text);
        }
        let keys = keys(&self.object).map(|key| format!("`{key}`"));
        let keys: Vec<String> = keys.take(10).collect();
        let found = match keys.as_slice() {
            [] => "it has no keys".to_owned(),
            keys => format!("its keys are {}", keys.join(", ")),
        };
        Err(ChatError::NoForm(self.place, found))
    }

    fn completion(self, prompt: &Value, completion: &Value) -> Result<Conversation, ChatError> {
        if prompt.kind() == ValueKind::String {
            let prompt = self.string("prompt", prompt)?;
            let completion = self.string("completion", completion)?;
            return Conversation::of_completion(self.place, prompt, completion);
        }
        let mut messages = self.messages("prompt", prompt)?;
        let learned_from = messages.len();
        messages.extend(self.messages("completion", completion)?);
        let tools = self.tools()?;
        Conversation::of_messages(self.place, messages, learned_from, tools)
    }

    /// The value of a key, unless it is null.
    fn get(&self, key: &str) -> Option<Value> {
        get(&self.object, key)
    }

    fn tools(&self) -> Result<Value, ChatError> {
        match self.get("tools") {
            None => Ok(Value::from(())),
            Some(tools) if tools.kind() == ValueKind::Seq => Ok(tools),
            Some(other) => Err(self.wrong("tools", &other, "a list")),
        }
    }

    fn string(&self, key: &str, value: &Value) -> Result<String, ChatError> {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| self.wrong(key, value, "a string"))
    }

    fn messages(&self, key: &str, list: &Value) -> Result<Vec<Message>, ChatError> {
        let Some(items) = items(list) else {
            return Err(self.wrong(key, list, "a list of messages"));
        };
        let messages = items
            .enumerate()
            .map(|(index, message)| self.message(&format!("{key}[{index}]"), &message));
        messages.collect()
    }

    fn message(&self, key: &str, message: &Value) -> Result<Message, ChatError> {
        if message.kind() != ValueKind::Map {
            let expected = "an object with `role` and `content`";
            return Err(self.wrong(key, message, expected));
        }
        let role = get(message, "role").unwrap_or_default();
        let role = self.string(&format!("{key}.role"), &role)?;

        let thinking = THINKING.iter().find_map(|name| get(message, name));
        let mut pairs: Vec<(String, Value)> = Vec::new();
        // In this order and with these names, as transformers does it.
        if let Some(thinking) = &thinking {
            pairs.push(("thinking".to_owned(), thinking.clone()));
        }
        for name in keys(message) {
            let Some(value) = get(message, &name) else {
                continue;
            };
            let value = match &*name {
                "content" => self.content(&format!("{key}.content"), value)?,
                _ => value,
            };
            pairs.push((name, value));
        }
        if let Some(thinking) = thinking {
            pairs.push((THINKING[0].to_owned(), thinking));
        }
        let value = Value::from_pairs(pairs);
        Ok(Message { role, value })
    }

    /// The text of a message's content, which is a string or a list of parts.
    fn content(&self, key: &str, content: Value) -> Result<Value, ChatError> {
        if content.kind() == ValueKind::String {
            return Ok(content);
        }
        let Some(parts) = items(&content) else {
            return Err(self.wrong(key, &content, "a string or a list of parts"));
        };
        let mut joined = String::new();
        for (index, part) in parts.enumerate() {
            let kind = get(&part, "type");
            let is_text = kind.is_some_and(|kind| kind.as_str() == Some("text"));
            let text = get(&part, "text").filter(|_| is_text);
            let Some(text) = text.as_ref().and_then(Value::as_str) else {
                let expected = "a part of a text: {\"type\": \"text\", \"text\": …}";
                return Err(self.wrong(&format!("{key}[{index}]"), &part, expected));
            };
            joined.push_str(text);
        }
        Ok(Value::from(joined))
    }

    fn wrong(&self, key: &str, found: &Value, expected: &'static str) -> ChatError {
        ChatError::Value {
            place: self.place.clone(),
            key: key.to_owned(),
            found: kind(found),
            expected,
        }
    }
}

/// The value of an object's key, unless it is null. Other values have none.
fn get(object: &Value, key: &str) -> Option<Value> {
    let value = object.get_attr(key).ok()?;
    let is_there = !value.is_undefined() && !value.is_none();
    is_there.then_some(value)
}

/// The keys of an object, in order.
fn keys(object: &Value) -> impl Iterator<Item = String> {
    let keys = object.try_iter().ok().into_iter().flatten();
    keys.filter_map(|key| key.as_str().map(str::to_owned))
}

/// The items of a list.
fn items(list: &Value) -> Option<impl Iterator<Item = Value> + use<>> {
    let is_list = list.kind() == ValueKind::Seq;
    list.try_iter().ok().filter(|_| is_list)
}

/// What kind of JSON a value is.
fn kind(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "missing",
        ValueKind::None => "null",
        ValueKind::Bool => "true or false",
        ValueKind::Number => "a number",
        ValueKind::String => "a string",
        ValueKind::Seq => "a list",
        ValueKind::Map => "an object",
        _ => "something else",
    }
}
