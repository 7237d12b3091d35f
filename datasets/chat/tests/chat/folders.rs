//! Folders of models.

use std::fs;

use serde_json::json;
use stovepipe_chat::{ChatError, ChatTemplate, ChatTokenizer, Message, SpecialTokens};

use crate::folder::{Model, write};

fn rendered(template: &ChatTemplate) -> String {
    template
        .render(&[Message::new("user", "Hi")], false)
        .unwrap()
}

#[test]
fn the_template_is_in_a_file_or_in_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let error = ChatTemplate::of_folder(path).unwrap_err();
    assert!(
        error.to_string().contains("has no chat template"),
        "{error}"
    );

    for (value, expected) in [
        (json!(null), None),
        (json!([{"name": "tool_use", "template": "x"}]), None),
        (json!([{"name": "default"}]), None),
        (json!("one {{ eos_token }}"), Some("one </s>")),
        (
            json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "two"}]),
            Some("two"),
        ),
    ] {
        let config = json!({"chat_template": value, "eos_token": "</s>", "model_max_length": 1e30});
        write(&folder, "tokenizer_config.json", &config.to_string());
        match (ChatTemplate::of_folder(path), expected) {
            (Ok(template), Some(expected)) => assert_eq!(rendered(&template), expected),
            (Err(ChatError::NoTemplate(_)), None) => {}
            (other, _) => panic!("{value}: {other:?}"),
        }
    }

    write(&folder, "chat_template.jinja", "file {{ eos_token }}\n");
    let template = ChatTemplate::of_folder(path).unwrap();
    assert_eq!(rendered(&template), "file </s>");
    assert!(format!("{template:?}").contains("chat_template.jinja"));
    write(&folder, "mine.jinja", "\n{% mine");
    let error = ChatTemplate::read(&path.join("mine.jinja"), path)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mine.jinja, line 2: syntax error"),
        "{error}"
    );

    fs::write(path.join("chat_template.jinja"), b"abc\xff").unwrap();
    let error = ChatTemplate::of_folder(path).unwrap_err();
    assert!(
        error.to_string().contains("is not UTF-8: byte 3"),
        "{error}"
    );
    assert!(ChatTemplate::read(&path.join("missing.jinja"), path).is_err());
}

#[test]
fn special_tokens_are_in_two_files() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        SpecialTokens::read(folder.path()).unwrap(),
        SpecialTokens::default()
    );
    write(
        &folder,
        "tokenizer_config.json",
        r#"{"bos_token": null, "eos_token": {"content": "a"}, "unk_token": 3}"#,
    );
    write(
        &folder,
        "special_tokens_map.json",
        r#"{"bos_token": "b", "eos_token": "c", "pad_token": "d", "x": "e"}"#,
    );
    let tokens = SpecialTokens::read(folder.path()).unwrap();
    let expected = [("bos_token", "b"), ("eos_token", "a"), ("pad_token", "d")];
    assert_eq!(tokens, SpecialTokens::new(expected));

    for content in ["", "[1]", "{\"a\": "] {
        write(&folder, "special_tokens_map.json", content);
        let error = SpecialTokens::read(folder.path()).unwrap_err();
        assert!(matches!(error, ChatError::NotJson(..)), "{error}");
        assert!(
            error
                .to_string()
                .contains("special_tokens_map.json is not JSON"),
            "{error}"
        );
    }
}

#[test]
fn a_tokenizer_has_special_tokens_and_a_vocabulary() {
    let model = Model {
        merges: &[("h", "e")],
        ..Model::default()
    };
    let folder = model.folder();
    let tokenizer = ChatTokenizer::of_folder(folder.path()).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.pad()),
        (Some(256), Some(257), None)
    );
    assert_eq!(tokenizer.vocabulary(), 261);
    assert_eq!(tokenizer.encode("<s>he").unwrap(), [256, 260]);
    assert!(tokenizer.check_vocabulary(261).is_ok());
    let error = tokenizer.check_vocabulary(260).unwrap_err().to_string();
    assert!(
        error.starts_with("the tokenizer has a vocabulary of 261 tokens, but the model one of 260"),
        "{error}"
    );
    assert!(format!("{tokenizer:?}").contains("vocabulary: 261"));
}

#[test]
fn folders_without_a_tokenizer_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let read = || ChatTokenizer::of_folder(folder.path()).unwrap_err();
    assert!(matches!(read(), ChatError::NoTokenizer(_)), "{}", read());
    write(&folder, "tokenizer.model", "");
    assert!(read().to_string().contains("AutoTokenizer"), "{}", read());
    for content in ["", "{}", "{\"model\": 3}", "\u{feff}{}"] {
        write(&folder, "tokenizer.json", content);
        assert!(matches!(read(), ChatError::NotATokenizer(..)), "{}", read());
    }
}
