//! Lines of conversations.

use std::{
    fs,
    io::{self, BufReader, Read},
    path::Path,
};

use proptest::prelude::*;
use stovepipe_chat::{ChatError, Conversation, Conversations};

fn read(lines: &[u8]) -> Vec<Result<Conversation, String>> {
    let read = Conversations::new(lines, "train.jsonl");
    read.map(|read| read.map_err(|error| error.to_string()))
        .collect()
}

#[test]
fn errors_say_what_is_wrong_in_which_line() {
    for (line, expected) in [
        (
            "nonsense",
            "is not a JSON object: expected ident at line 1 column 2",
        ),
        ("[1]", "is not a JSON object: it is a list"),
        ("{\"text\": \"\\ud800\"}", "is not a JSON object: "),
        (
            "{}",
            "has none of the three forms: `messages`, `prompt` and `completion`, or `text` (it has no keys)",
        ),
        (r#"{"prompt": "a", "x": 1}"#, "(its keys are `prompt`, `x`)"),
        (
            r#"{"messages": null, "text": null}"#,
            "has none of the three forms",
        ),
        (r#"{"messages": []}"#, "`messages` is empty"),
        (
            r#"{"messages": "a"}"#,
            "messages is a string, but must be a list of messages",
        ),
        (
            r#"{"messages": [1]}"#,
            "messages[0] is a number, but must be an object",
        ),
        (
            r#"{"messages": [{"content": "a"}]}"#,
            "messages[0].role is missing, but must be a string",
        ),
        (
            r#"{"messages": [{"role": 1}]}"#,
            "messages[0].role is a number",
        ),
        (
            r#"{"messages": [{"role": "user", "content": 1}]}"#,
            "messages[0].content is a number",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image", "text": "a"}]}]}"#,
            "messages[0].content[0] is an object, but must be a part of a text",
        ),
        (
            r#"{"messages": [{"role": "user", "content": ["a"]}]}"#,
            "messages[0].content[0] is a string",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "has no message of the role `assistant`",
        ),
        (
            r#"{"messages": [{"role": "assistant"}], "tools": {}}"#,
            "tools is an object, but must be a list",
        ),
        (
            r#"{"prompt": "a", "completion": ""}"#,
            "`completion` is empty",
        ),
        (
            r#"{"prompt": "a", "completion": []}"#,
            "completion is a list, but must be a string",
        ),
        (
            r#"{"prompt": [], "completion": "a"}"#,
            "completion is a string, but must be a list",
        ),
        (
            r#"{"prompt": true, "completion": "a"}"#,
            "prompt is true or false, but must be a list",
        ),
        (
            r#"{"prompt": [{"role": "assistant"}], "completion": [{"role": "user"}]}"#,
            "has no message of the role `assistant`",
        ),
        (r#"{"text": ""}"#, "`text` is empty"),
        (r#"{"text": 3}"#, "text is a number, but must be a string"),
    ] {
        let lines = format!("{{\"text\": \"a\"}}\n \t\n{line}\n{{\"text\": \"b\"}}");
        let read = read(lines.as_bytes());
        // The next line is read.
        assert_eq!(read.len(), 3, "{line}");
        assert!(read[0].is_ok() && read[2].is_ok(), "{line}");
        let error = read[1].as_ref().unwrap_err();
        assert!(error.starts_with("train.jsonl:3"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn lines_may_end_in_any_way() {
    let lines = b"\xef\xbb\xbf{\"text\": \"a\"}\r\n\r\n{\"text\": \"b\"}";
    assert!(read(lines).iter().all(Result::is_ok));
    assert_eq!(read(lines).len(), 2);
    assert_eq!(read(b"").len(), 0);
    assert_eq!(read(b"\n\n").len(), 0);
    let error = read(b"{\"text\": \"\xff\"}").remove(0).unwrap_err();
    assert!(
        error.starts_with("train.jsonl:1 is not a JSON object"),
        "{error}"
    );
}

#[test]
fn a_line_that_is_too_long_is_an_error() {
    let text = |length: usize| {
        let rest = length - r#"{"text": ""}"#.len();
        format!("{{\"text\": \"{}\"}}", "a".repeat(rest))
    };
    let fits = text(Conversations::LONGEST_LINE) + "\n{\"text\": \"b\"}";
    assert!(read(fits.as_bytes()).iter().all(Result::is_ok));
    let longer = text(Conversations::LONGEST_LINE + 1) + "\n{\"text\": \"b\"}";
    let error = read(longer.as_bytes()).remove(0).unwrap_err();
    assert!(
        error.starts_with("train.jsonl:1 is longer than 16777216 bytes"),
        "{error}"
    );
    // A file without an end of a line is not read to its end.
    let endless = BufReader::new(io::repeat(b'a'));
    let mut endless = Conversations::new(endless, "endless");
    assert!(matches!(
        endless.next(),
        Some(Err(ChatError::LineTooLong(..)))
    ));
    assert!(endless.next().is_none());
}

#[test]
fn files_that_cannot_be_read_are_errors() {
    let missing = Conversations::open(Path::new("missing.jsonl")).unwrap_err();
    assert!(
        missing.to_string().starts_with("missing.jsonl: "),
        "{missing}"
    );
    let folder = tempfile::tempdir().unwrap();
    let mut read = Conversations::open(folder.path()).unwrap();
    assert!(matches!(read.next(), Some(Err(ChatError::Unreadable(..)))));
    assert!(read.next().is_none());

    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    let mut broken = Conversations::new(BufReader::new(Broken), "broken");
    assert_eq!(
        broken.next().unwrap().unwrap_err().to_string(),
        "broken: broken"
    );

    let path = folder.path().join("train.jsonl");
    fs::write(&path, "{\"text\": \"a\"}").unwrap();
    assert_eq!(Conversations::open(&path).unwrap().count(), 1);
}

fn json() -> impl Strategy<Value = String> {
    let text = prop::sample::select(
        &[
            "\"a\"",
            "\"\"",
            "\"assistant\"",
            "\"text\"",
            "\"\\ud800\"",
            "\"é\"",
        ][..],
    );
    let scalar = prop::sample::select(
        &[
            "null",
            "true",
            "1",
            "-1.5e300",
            "1e999",
            "99999999999999999999",
        ][..],
    );
    let leaf = prop_oneof![text, scalar].prop_map(str::to_owned);
    let key = prop::sample::select(
        &[
            "messages",
            "role",
            "content",
            "prompt",
            "completion",
            "text",
            "type",
            "tools",
            "thinking",
        ][..],
    );
    leaf.prop_recursive(5, 40, 5, move |inner| {
        let list = prop::collection::vec(inner.clone(), 0..5);
        let map = prop::collection::vec((key.clone(), inner), 0..5);
        prop_oneof![
            list.prop_map(|items| format!("[{}]", items.join(","))),
            map.prop_map(|pairs| {
                let pairs = pairs
                    .iter()
                    .map(|(key, value)| format!("\"{key}\":{value}"));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn no_line_panics(json in json()) {
        let _ = Conversation::parse(&json);
        let _ = Conversation::parse(&format!("{{\"messages\":[{json}]}}"));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = read(&bytes);
    }
}
