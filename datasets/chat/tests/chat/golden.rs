//! Renderings equal those of Hugging Face's transformers, which `golden/make.py` made.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use stovepipe_chat::{ChatError, ChatTemplate, Conversation, Conversations, SpecialTokens};

fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

fn template(name: &str) -> ChatTemplate {
    let source = fs::read_to_string(path(&format!("templates/{name}.jinja"))).unwrap();
    let tokens = [
        ("bos_token", "<s>"),
        ("eos_token", "</s>"),
        ("unk_token", "<unk>"),
    ];
    let template = ChatTemplate::new(&source, name, &SpecialTokens::new(tokens)).unwrap();
    template.with_day("2024-07-26".parse().unwrap())
}

fn conversations() -> Vec<Conversation> {
    let read = Conversations::open(&path("conversations.jsonl")).unwrap();
    read.collect::<Result<_, _>>().unwrap()
}

#[test]
fn renderings_equal_those_of_transformers() {
    let conversations = conversations();
    let mut templates = BTreeMap::new();
    let (mut equal, mut different) = (0, Vec::new());
    for line in fs::read_to_string(path("expected.jsonl"))
        .unwrap()
        .split_terminator('\n')
    {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["template"].as_str().unwrap();
        let index = row["conversation"].as_u64().unwrap() as usize;
        let prompt = row["prompt"].as_bool().unwrap();
        let template = templates
            .entry(name.to_owned())
            .or_insert_with(|| template(name));
        let rendered = template.render_conversation(&conversations[index], prompt);
        let is_same = match (&rendered, row["text"].as_str(), row["error"].as_str()) {
            (Ok(text), Some(expected), None) => text == expected,
            // A message of the template is the same, one of Jinja is not.
            (Err(ChatError::Refused { message, .. }), None, Some(expected)) => message == expected,
            (Err(ChatError::Template { .. }), None, Some(_)) => true,
            _ => false,
        };
        if is_same {
            equal += 1;
        } else {
            different.push(format!(
                "{name} {index} {prompt}: {}",
                excerpt(&row, &rendered)
            ));
        }
    }
    let different = different.join("\n\n");
    assert!(
        different.is_empty(),
        "{equal} are equal, but not\n{different}"
    );
    assert_eq!(equal, templates.len() * conversations.len() * 2);
    assert_eq!(templates.len(), 11);
}

/// Both texts from shortly before their first difference on.
fn excerpt(expected: &Value, rendered: &Result<String, ChatError>) -> String {
    let (Some(expected), Ok(rendered)) = (expected["text"].as_str(), rendered) else {
        return format!("{expected:?}\n{rendered:?}");
    };
    let same = expected
        .chars()
        .zip(rendered.chars())
        .take_while(|(one, other)| one == other);
    let begin = same.count().saturating_sub(20);
    let part = |text: &str| text.chars().skip(begin).take(100).collect::<String>();
    format!("\n{:?}\n{:?}", part(expected), part(rendered))
}
