use std::ops::Range;

use minijinja::Value;
use tokenizers::Encoding;

use crate::{ChatError, ChatTemplate, ChatTokenizer, Conversation, Message, conversation::Form};

/// A conversation as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// For each token, whether it is learned, that is, a target of the token before.
    ///
    /// Nothing comes before the first token, so it is never a target, whatever its value is here.
    pub learned: Vec<bool>,
}

impl Example {
    /// The number of targets: learned tokens without the first token.
    ///
    /// ```
    /// let (tokens, learned) = (vec![5, 6, 7], vec![true, false, true]);
    /// assert_eq!(stovepipe_chat::Example { tokens, learned }.targets(), 1);
    /// ```
    #[must_use]
    pub fn targets(&self) -> usize {
        let targets = self.learned.iter().skip(1);
        targets.filter(|&&is_learned| is_learned).count()
    }

    /// Cuts the tokens after the first `length`. Says whether there were more.
    ///
    /// ```
    /// let (tokens, learned) = (vec![5, 6, 7], vec![false, true, true]);
    /// let mut example = stovepipe_chat::Example { tokens, learned };
    /// assert!(example.cut(2));
    /// assert_eq!((example.tokens.len(), example.targets()), (2, 1));
    /// assert!(!example.cut(2));
    /// ```
    pub fn cut(&mut self, length: usize) -> bool {
        let is_longer = self.tokens.len() > length;
        self.tokens.truncate(length);
        self.learned.truncate(length);
        is_longer
    }
}

/// Makes [`Example`]s of conversations.
///
/// | form | tokens | learned |
/// |---|---|---|
/// | messages | of the whole rendering | what the assistant says, and the token that ends its turn |
/// | a prompt and its completion | a beginning, of both texts, `eos` | the completion and `eos` |
/// | a text | a beginning, of the text, `eos` | all |
///
/// A template writes its own special tokens, so none are added to its rendering. Without a
/// template, the tokens of a text's beginning are those that the tokenizer adds, if it adds any.
///
/// What the assistant says in a message begins where a rendering of the messages before, with a
/// generation prompt, ends; and it ends where a rendering up to this message ends, less white space
/// after a special token at its end, such as the line break after `<|im_end|>`. A token on the edge
/// is learned.
#[derive(Clone, Debug)]
pub struct Encoder {
    tokenizer: ChatTokenizer,
    template: Option<ChatTemplate>,
}

impl Encoder {
    /// With a template for messages, or without.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::write(folder.path().join("tokenizer.json"), r#"{"model": {"type": "WordLevel",
    /// #     "vocab": {"[UNK]": 0, "2": 1, "+": 2, "=": 3, "4": 4, "</s>": 5}, "unk_token": "[UNK]"},
    /// #     "pre_tokenizer": {"type": "Whitespace"}}"#)?;
    /// # std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token": "</s>"}"#)?;
    /// # let folder = folder.path();
    /// use stovepipe_chat::{ChatTokenizer, Conversation, Encoder};
    ///
    /// let encoder = Encoder::new(ChatTokenizer::of_folder(folder)?, None);
    /// let example = encoder.encode(&Conversation::completion("2 + 2 =", " 4")?)?;
    /// assert_eq!(example.tokens, [1, 2, 1, 3, 4, 5]);
    /// assert_eq!(example.learned, [false, false, false, false, true, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(tokenizer: ChatTokenizer, template: Option<ChatTemplate>) -> Self {
        Self {
            tokenizer,
            template,
        }
    }

    /// Encodes a conversation.
    ///
    /// # Errors
    ///
    /// If messages have no template, the template fails, it renders earlier turns in another way
    /// when more follow, or the tokenizer fails. The error names the conversation's line.
    pub fn encode(&self, conversation: &Conversation) -> Result<Example, ChatError> {
        let encoded = match &conversation.form {
            Form::Messages {
                messages,
                learned_from,
                tools,
            } => self.messages(messages, *learned_from, tools),
            Form::Completion { prompt, completion } => {
                let text = [&**prompt, completion].concat();
                self.text(&text, Some(prompt.len()))
            }
            Form::Text(text) => self.text(text, None),
        };
        encoded.map_err(|error| ChatError::At(conversation.place.clone(), Box::new(error)))
    }

    /// A text that is learned from a byte on, or all of it, with the beginning.
    fn text(&self, text: &str, learned_from: Option<usize>) -> Result<Example, ChatError> {
        let eos = self.tokenizer.needed_eos()?;
        let encoding = self.tokenizer.encoding(text)?;
        let beginning = self.tokenizer.beginning();
        let tokens = [beginning, encoding.get_ids(), &[eos]].concat();
        let mut learned = vec![learned_from.is_none(); beginning.len()];
        let span = learned_from.unwrap_or(0)..text.len();
        learned.extend(ranges(&encoding).map(|range| overlaps(&range, &span)));
        learned.push(true);
        Ok(Example { tokens, learned })
    }

    fn messages(
        &self,
        messages: &[Message],
        learned_from: usize,
        tools: &Value,
    ) -> Result<Example, ChatError> {
        let template = self.template.as_ref();
        let template = template.ok_or(ChatError::MessagesWithoutTemplate)?;
        let run = || self.rendered(template, messages, learned_from, tools);
        template.with_large_stack(run)?
    }

    fn rendered(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        learned_from: usize,
        tools: &Value,
    ) -> Result<Example, ChatError> {
        let text = template.render_with(messages, tools, false)?;
        let encoding = self.tokenizer.encoding(&text)?;
        let ranges: Vec<Range<usize>> = ranges(&encoding).collect();
        let mut learned = vec![false; ranges.len()];
        for (index, message) in messages.iter().enumerate().skip(learned_from) {
            if !message.is_assistant() {
                continue;
            }
            let render = |until: usize, with_prompt: bool| {
                let before = messages.get(..until).unwrap_or(messages);
                let rendered = template.render_with(before, tools, with_prompt)?;
                let turn = index + 1;
                let is_beginning = text.starts_with(&rendered);
                let length = is_beginning.then_some(rendered.len());
                length.ok_or(ChatError::TurnsBefore { turn })
            };
            let span = render(index, true)?..render(index + 1, false)?;
            if span.start > span.end {
                return Err(ChatError::TurnsBefore { turn: index + 1 });
            }
            let span = self.without_space_after_end(&text, span, encoding.get_ids(), &ranges);
            mark(&mut learned, &ranges, &span);
        }
        let tokens = encoding.get_ids().to_vec();
        Ok(Example { tokens, learned })
    }

    /// A turn without white space after its last special token. After other text than white space,
    /// the special token does not end the turn.
    fn without_space_after_end(
        &self,
        text: &str,
        span: Range<usize>,
        tokens: &[u32],
        ranges: &[Range<usize>],
    ) -> Range<usize> {
        let first = ranges.partition_point(|range| range.start < span.start);
        let mut end = None;
        for (&token, range) in tokens.iter().zip(ranges).skip(first) {
            if range.end > span.end {
                break;
            }
            if self.tokenizer.is_special(token) {
                end = Some(range.end);
            }
        }
        let is_end = |end: &usize| {
            let after = text.get(*end..span.end);
            after.is_some_and(|after| after.trim().is_empty())
        };
        let end = end.filter(is_end).unwrap_or(span.end);
        span.start..end
    }
}

/// Marks the tokens of a span of the text as learned.
fn mark(learned: &mut [bool], ranges: &[Range<usize>], span: &Range<usize>) {
    let first = ranges.partition_point(|range| range.end < span.start);
    for (is_learned, range) in learned.iter_mut().zip(ranges).skip(first) {
        if range.start >= span.end {
            break;
        }
        *is_learned |= overlaps(range, span);
    }
}

/// Whether a token has text of the span. One without text is in the span if it is not at its end.
fn overlaps(token: &Range<usize>, span: &Range<usize>) -> bool {
    let has_text = token.start < token.end;
    token.start < span.end && (token.end > span.start || !has_text && token.start == span.start)
}

/// The bytes of the text that each token has. Some tokenizers leave the space before a word out, or
/// all of a token of spaces: then it has what the tokens before leave.
fn ranges(encoding: &Encoding) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    encoding.get_offsets().iter().map(move |&(from, to)| {
        let range = if from < to { from..to } else { end.min(to)..to };
        end = end.max(to);
        range
    })
}
