//! Conversations as JSON lines.

use std::str;

use stovepipe_chat::{Conversation, Conversations};

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
