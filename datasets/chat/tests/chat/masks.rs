//! Which tokens are learned.

use proptest::prelude::*;
use serde_json::{Value, json};
use stovepipe_chat::{
    ChatError, ChatTemplate, ChatTokenizer, Conversation, Counts, Encoder, Example, Examples,
    Message,
};

use crate::folder::{CHATML, Model, write};

const BOS: u32 = 256;
const EOS: u32 = 257;

fn conversation(messages: &[(&str, &str)]) -> Conversation {
    let messages = messages
        .iter()
        .map(|(role, content)| Message::new(role, content));
    Conversation::messages(messages.collect()).unwrap()
}

/// The texts of learned tokens, without those that are not; `tokens` are those of texts.
fn check(tokenizer: &ChatTokenizer, example: &Example, parts: &[(&str, bool)]) {
    let (mut tokens, mut learned) = (Vec::new(), Vec::new());
    for &(text, is_learned) in parts {
        let encoded = tokenizer.encode(text).unwrap();
        learned.extend(vec![is_learned; encoded.len()]);
        tokens.extend(encoded);
    }
    assert_eq!(example, &Example { tokens, learned });
}

#[test]
fn what_the_assistant_says_and_the_end_of_its_turn_are_learned() {
    for trims in [false, true] {
        let model = Model {
            template: Some(CHATML),
            trims,
            ..Model::default()
        };
        let (encoder, tokenizer) = model.encoder();
        let turns = [
            ("system", "Be brief."),
            ("user", "Grüße"),
            ("assistant", " Hello 🦀 "),
            ("user", "<|im_end|>?"),
            ("assistant", ""),
        ];
        let example = encoder.encode(&conversation(&turns)).unwrap();
        let start = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüße<|im_end|>\n\
                     <|im_start|>assistant\n";
        let parts = [
            (start, false),
            (" Hello 🦀 <|im_end|>", true),
            (
                "\n<|im_start|>user\n<|im_end|>?<|im_end|>\n<|im_start|>assistant\n",
                false,
            ),
            ("<|im_end|>", true),
            ("\n", false),
        ];
        check(&tokenizer, &example, &parts);
    }
}

#[test]
fn in_lists_of_a_prompt_and_a_completion_only_the_completion_is_learned() {
    let model = Model {
        template: Some(CHATML),
        ..Model::default()
    };
    let (encoder, tokenizer) = model.encoder();
    let line = r#"{"prompt": [{"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}],
        "completion": [{"role": "assistant", "content": "C"}]}"#;
    let example = encoder.encode(&Conversation::parse(line).unwrap()).unwrap();
    let start = "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n";
    check(
        &tokenizer,
        &example,
        &[(start, false), ("C<|im_end|>", true), ("\n", false)],
    );
}

/// White space may be the only mark of a turn's end.
#[test]
fn without_a_special_token_at_the_end_the_white_space_is_learned() {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}\
                    {% if add_generation_prompt %}assistant: {% endif %}";
    for trims in [false, true] {
        let model = Model {
            template: Some(template),
            trims,
            ..Model::default()
        };
        let (encoder, tokenizer) = model.encoder();
        let turns = [
            ("user", "Hi"),
            ("assistant", "<s> no end"),
            ("user", "?"),
            ("assistant", "</s>"),
        ];
        let example = encoder.encode(&conversation(&turns)).unwrap();
        let parts = [
            ("user: Hi\n\nassistant: ", false),
            ("<s> no end\n\n", true),
            ("user: ?\n\nassistant: ", false),
            ("</s>", true),
            ("\n\n", false),
        ];
        check(&tokenizer, &example, &parts);
    }
}

#[test]
fn a_token_on_the_edge_is_learned() {
    let model = Model {
        template: Some(CHATML),
        merges: &[("Ċ", "Ċ")],
        ..Model::default()
    };
    let (encoder, tokenizer) = model.encoder();
    let example = encoder
        .encode(&conversation(&[("user", "Hi"), ("assistant", "\n\n!")]))
        .unwrap();
    let parts = [
        (
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant",
            false,
        ),
        ("\n\n\n!<|im_end|>", true),
        ("\n", false),
    ];
    check(&tokenizer, &example, &parts);
    assert!(example.tokens.contains(&260));
}

#[test]
fn special_tokens_are_not_added_twice() {
    let template =
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    for adds_bos in [false, true] {
        let model = Model {
            template: Some(template),
            adds_bos,
            ..Model::default()
        };
        let (encoder, tokenizer) = model.encoder();
        let example = encoder
            .encode(&conversation(&[("user", "a"), ("assistant", "b")]))
            .unwrap();
        check(
            &tokenizer,
            &example,
            &[("<s>a</s>", false), ("b</s>", true)],
        );

        let begin = if adds_bos { "<s>" } else { "" };
        let completion = Conversation::completion("2 + 2 =", " 4").unwrap();
        let example = encoder.encode(&completion).unwrap();
        check(
            &tokenizer,
            &example,
            &[(begin, false), ("2 + 2 =", false), (" 4</s>", true)],
        );
        assert_eq!(example.tokens.contains(&BOS), adds_bos);
        assert_eq!(example.targets(), 3);

        let text = Conversation::text("<s>Once").unwrap();
        let example = encoder.encode(&text).unwrap();
        check(
            &tokenizer,
            &example,
            &[(begin, true), ("<s>Once</s>", true)],
        );
        assert_eq!(example.tokens.last(), Some(&EOS));
        assert_eq!(example.targets(), example.tokens.len() - 1);
    }
}

/// Llama's and Mistral's first tokenizers: a mark stands for a space, one is put before a text, and
/// unknown characters are bytes.
#[test]
fn tokenizers_of_sentencepiece_have_the_same_masks() {
    let mut vocab: serde_json::Map<String, Value> = serde_json::Map::new();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let letters = "▁[]/INSTabcdefghijklmnopqrstuvwxyz."
        .chars()
        .map(String::from);
    let words = ["<unk>", "<s>", "</s>", "▁h", "he"].map(str::to_owned);
    for (id, token) in bytes.chain(letters).chain(words).enumerate() {
        vocab.insert(token, json!(id));
    }
    let added = ["<unk>", "<s>", "</s>"].map(|token| {
        json!({"id": vocab[token], "content": token, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["▁ h", "h e"], "unk_token": "<unk>",
            "fuse_unk": true, "byte_fallback": true},
    });
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "tokenizer.json", &tokenizer.to_string());
    let template = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}\
                    {{ '[INST] ' + m.content + ' [/INST]' }}{% else %}\
                    {{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}";
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template});
    write(&folder, "tokenizer_config.json", &config.to_string());

    let tokenizer = ChatTokenizer::of_folder(folder.path()).unwrap();
    let template = ChatTemplate::of_folder(folder.path()).unwrap();
    let encoder = Encoder::new(tokenizer, Some(template));
    let turns = [
        ("user", "hi"),
        ("assistant", "he 🦀."),
        ("user", "  x"),
        ("assistant", ""),
    ];
    let example = encoder.encode(&conversation(&turns)).unwrap();
    let name = |token: u32| {
        let found = vocab.iter().find(|(_, id)| **id == json!(token));
        found.unwrap().0.clone()
    };
    let mut shown = String::new();
    for (&token, &is_learned) in example.tokens.iter().zip(&example.learned) {
        shown += &name(token);
        shown += if is_learned { "! " } else { " " };
    }
    let expected = "<s> ▁ [ I N S T ] ▁h i ▁ [ / I N S T ] ▁h! e! ▁! <0xF0>! <0x9F>! <0xA6>! \
                    <0x80>! .! </s>! ▁ [ I N S T ] ▁ ▁ ▁ x ▁ [ / I N S T ] ▁! </s>! ";
    assert_eq!(shown, expected);
}

#[test]
fn turns_that_are_rendered_in_another_way_later_are_an_error() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if not loop.last and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}\
        {% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let model = Model {
        template: Some(template),
        ..Model::default()
    };
    let (encoder, tokenizer) = model.encoder();
    let turns = [
        ("user", "a"),
        ("assistant", "<think>x</think>b"),
        ("user", "c"),
        ("assistant", "d"),
    ];
    let error = encoder
        .encode(&conversation(&turns))
        .unwrap_err()
        .to_string();
    let expected = "the template does not begin with the turns before message 2, of the assistant";
    assert!(error.contains(expected), "{error}");
    let example = encoder.encode(&conversation(&turns[..2])).unwrap();
    let start = "<|im_start|>user\na<|im_end|><|im_start|>assistant\n";
    check(
        &tokenizer,
        &example,
        &[(start, false), ("<think>x</think>b<|im_end|>", true)],
    );
}

#[test]
fn long_examples_are_cut_and_those_without_targets_dropped() {
    let (encoder, _) = Model::default().encoder();
    let lines = [("ab", "c"), ("abcd", "e"), ("", "abcdef"), ("abc", "de")];
    let conversations = || {
        lines
            .iter()
            .map(|(prompt, completion)| Conversation::completion(*prompt, *completion))
    };
    let all = Examples::new(conversations(), &encoder, None).unwrap();
    let counts = Counts {
        read: 4,
        kept: 4,
        tokens: 4 + 6 + 7 + 6,
        targets: 2 + 2 + 6 + 3,
        longest: 7,
        ..Counts::default()
    };
    assert_eq!(all.counts, counts);

    let cut = Examples::new(conversations(), &encoder, Some(4)).unwrap();
    let counts = Counts {
        read: 4,
        kept: 3,
        cut: 3,
        dropped: 1,
        tokens: 12,
        targets: 2 + 3 + 1,
        longest: 4,
    };
    assert_eq!(cut.counts, counts);
    assert_eq!(cut.list[0], all.list[0]);
    assert_eq!(cut.list[1].tokens, all.list[2].tokens[..4]);
    assert_eq!(cut.list[2].learned, [false, false, false, true]);

    let error = Examples::new(conversations(), &encoder, Some(1)).unwrap_err();
    assert!(
        matches!(error, ChatError::Setting { value: 1, .. }),
        "{error}"
    );
}

#[test]
fn conversations_that_cannot_be_encoded_are_errors() {
    let no_eos = Model {
        has_no_eos: true,
        ..Model::default()
    };
    let error = no_eos
        .encoder()
        .0
        .encode(&Conversation::text("a").unwrap())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("has no token for the end of a text"),
        "{error}"
    );

    let (encoder, _) = Model::default().encoder();
    let messages = conversation(&[("user", "a"), ("assistant", "b")]);
    let error = encoder.encode(&messages).unwrap_err().to_string();
    assert!(error.contains("messages need a chat template"), "{error}");

    // The error of a file names its line.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.jsonl");
    let line = r#"{"messages": [{"role": "assistant", "content": "a"}]}"#;
    std::fs::write(&path, format!("{{\"text\": \"a\"}}\n\n{line}\n")).unwrap();
    let error = Examples::read(&path, &encoder, None)
        .unwrap_err()
        .to_string();
    let expected = format!("{}:3: messages need a chat template", path.display());
    assert!(error.starts_with(&expected), "{error}");
}

fn turns() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let role = prop::sample::select(&["system", "user", "assistant"][..]);
    let special =
        prop::sample::select(&["<|im_end|>", "<|im_start|>", "\n", " ", "<s>", "é", "🦀"][..]);
    let piece = prop_oneof![
        special.prop_map(str::to_owned),
        any::<char>().prop_map(String::from)
    ];
    let content = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    prop::collection::vec((role, content), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Turn by turn, with each byte a token: nothing depends on what is around it.
    #[test]
    fn masks_equal_those_of_single_turns(turns in turns(), trims in any::<bool>()) {
        thread_local! {
            static MODELS: [(Encoder, ChatTokenizer); 2] = [false, true].map(|trims| {
                Model { template: Some(CHATML), trims, ..Model::default() }.encoder()
            });
        }
        prop_assume!(turns.iter().any(|(role, _)| *role == "assistant"));
        let messages = turns.iter().map(|(role, content)| Message::new(role, content)).collect();
        let conversation = Conversation::messages(messages).unwrap();
        MODELS.with(|models| {
            let (encoder, tokenizer) = &models[usize::from(trims)];
            let example = encoder.encode(&conversation).unwrap();
            let turns = turns.iter().map(|(role, content)| {
                let start = format!("<|im_start|>{role}\n");
                (start, format!("{content}<|im_end|>"), *role == "assistant")
            });
            let turns: Vec<_> = turns.collect();
            let parts = turns.iter().flat_map(|(start, said, is_learned)| {
                [(start.as_str(), false), (said.as_str(), *is_learned), ("\n", false)]
            });
            check(tokenizer, &example, &parts.collect::<Vec<_>>());
        });
    }
}
