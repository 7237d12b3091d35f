//! Conversations to fine-tune a language model on.
//!
//! 1. [`Conversations`] reads JSON lines: messages, prompts with completions, or texts.
//! 2. [`ChatTemplate`] renders messages as the text that the model knows, as Hugging Face's
//!    transformers does.
//! 3. [`ChatTokenizer`] encodes the text, and [`Encoder`] says which tokens are learned: those of
//!    the assistant.
//! 4. [`Examples`] are all of a file, cut to a length, with [`Counts`].
//! 5. [`micro_batches`] splits a mini-batch with little padding.
//!
//! There are no tensors here.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # std::fs::write(folder.path().join("tokenizer.json"), r#"{"model": {"type": "WordLevel",
//! #     "vocab": {"[UNK]": 0, "user": 1, "assistant": 2, "Hi": 3, "Hello": 4, "<|end|>": 5}, "unk_token": "[UNK]"},
//! #     "pre_tokenizer": {"type": "Whitespace"},
//! #     "added_tokens": [{"id": 5, "content": "<|end|>", "special": true, "single_word": false, "lstrip": false,
//! #     "rstrip": false, "normalized": false}]}"#)?;
//! # std::fs::write(folder.path().join("chat_template.jinja"), "{% for m in messages %}
//! # {{ m.role }} {{ m.content }}<|end|>
//! # {% endfor %}{% if add_generation_prompt %}assistant {% endif %}")?;
//! # let folder = folder.path();
//! use stovepipe_chat::{ChatTemplate, ChatTokenizer, Conversation, Encoder, Message};
//!
//! let template = ChatTemplate::of_folder(folder)?;
//! let encoder = Encoder::new(ChatTokenizer::of_folder(folder)?, Some(template));
//! let messages = vec![Message::new("user", "Hi"), Message::new("assistant", "Hello")];
//! let example = encoder.encode(&Conversation::messages(messages)?)?;
//! // user Hi <|end|> assistant Hello <|end|>
//! assert_eq!(example.tokens, [1, 3, 5, 2, 4, 5]);
//! assert_eq!(example.learned, [false, false, false, false, true, true]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batches;
mod conversation;
mod day;
mod error;
mod example;
mod examples;
mod limits;
mod python;
mod reader;
mod special;
mod template;
mod tokenizer;

pub use batches::micro_batches;
pub use conversation::{Conversation, Message};
pub use day::Day;
pub use error::{ChatError, Place};
pub use example::{Encoder, Example};
pub use examples::{Counts, Examples};
pub use reader::Conversations;
pub use special::SpecialTokens;
pub use template::ChatTemplate;
pub use tokenizer::ChatTokenizer;
