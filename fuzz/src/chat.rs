//! Conversations as JSON lines, and folders of models.

use std::str;

use stovepipe_chat::{ChatTemplate, ChatTokenizer, Conversation, Conversations, Encoder, Message};

use super::files::{in_folder, parts};

/// Every line that is not blank is a conversation or an error that names the line, and is the same alone.
pub fn jsonl(bytes: &[u8]) {
    let mut read = Conversations::new(bytes, "seed.jsonl");
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Some(found) = read.next() else {
            panic!("line {number} was not read");
        };
        if let Err(error) = &found {
            assert!(error.to_string().contains(&format!("seed.jsonl:{number}")));
        }
        if let Ok(line) = str::from_utf8(line) {
            assert_eq!(Conversation::parse(line).is_ok(), found.is_ok());
        }
    }
    assert!(read.next().is_none());
}

/// A template, `tokenizer_config.json` and `tokenizer.json` of a model render and encode a conversation, or fail: each
/// token is learned or not, and in the vocabulary.
pub fn model(bytes: &[u8]) {
    let [template, config, tokenizer] = parts(bytes);
    let mut files = vec![
        ("chat_template.jinja", template),
        ("tokenizer_config.json", config),
        ("tokenizer.json", tokenizer),
    ];
    // Without a file, others are read in its place.
    files.retain(|(_, bytes)| !bytes.is_empty());
    in_folder(&files, |folder| {
        let messages = vec![
            Message::new("user", "Hi, naïve one"),
            Message::new("assistant", " Hello\n"),
        ];
        let template = ChatTemplate::of_folder(folder).ok();
        let rendered = || template.as_ref()?.render(&messages, true).ok();
        assert_eq!(rendered(), rendered());
        let Ok(tokenizer) = ChatTokenizer::of_folder(folder) else {
            return;
        };
        let vocabulary = tokenizer.vocabulary();
        let special = [tokenizer.bos(), tokenizer.eos(), tokenizer.pad()];
        assert!((special.iter().flatten()).all(|&token| (token as usize) < vocabulary));
        let encoder = Encoder::new(tokenizer, template.clone());
        let text = Conversation::text("The cat sat.");
        for conversation in [Conversation::messages(messages.clone()), text] {
            if let Ok(example) = encoder.encode(&conversation.unwrap()) {
                assert_eq!(example.tokens.len(), example.learned.len());
                let mut tokens = example.tokens.iter();
                assert!(tokens.all(|&token| (token as usize) < vocabulary));
            }
        }
    });
}
