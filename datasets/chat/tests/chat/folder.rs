//! Folders of models for tests: each byte is a token, and special tokens are added.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};
use stovepipe_chat::{ChatTemplate, ChatTokenizer, Encoder};
use tempfile::TempDir;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

pub const CHATML: &str = "{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
";

/// The special tokens; their numbers are 256 and the ones after it.
pub const SPECIAL: [&str; 4] = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"];

/// What a folder has.
#[derive(Default)]
pub struct Model<'a> {
    pub template: Option<&'a str>,
    /// Their numbers are 260 and the ones after it. Of bytes, in the alphabet of GPT-2: `ĊĊ` are
    /// two ends of lines.
    pub merges: &'a [(&'a str, &'a str)],
    /// Whether the tokenizer puts `<s>` before a text.
    pub adds_bos: bool,
    /// Whether tokens' places leave spaces out.
    pub trims: bool,
    pub has_no_eos: bool,
}

impl Model<'_> {
    pub fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(&folder, "tokenizer.json", &self.tokenizer().to_string());
        let eos = (!self.has_no_eos).then_some("</s>");
        let config = json!({"bos_token": {"content": "<s>"}, "eos_token": eos});
        write(&folder, "tokenizer_config.json", &config.to_string());
        if let Some(template) = self.template {
            write(&folder, "chat_template.jinja", template);
        }
        folder
    }

    fn tokenizer(&self) -> Value {
        let mut letters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        letters.sort_unstable();
        let mut vocab: Map<String, Value> = Map::new();
        for (id, letter) in letters.into_iter().enumerate() {
            vocab.insert(letter.to_string(), json!(id));
        }
        for (id, (one, other)) in self.merges.iter().enumerate() {
            vocab.insert([*one, other].concat(), json!(260 + id));
        }
        for (id, content) in SPECIAL.iter().enumerate() {
            vocab.insert((*content).to_owned(), json!(256 + id));
        }
        let added = SPECIAL.iter().enumerate().map(|(index, content)| {
            json!({"id": 256 + index, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false})
        });
        let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
        let mut single = vec![sequence.clone()];
        if self.adds_bos {
            single.insert(0, json!({"SpecialToken": {"id": "<s>", "type_id": 0}}));
        }
        let merges = self
            .merges
            .iter()
            .map(|(one, other)| format!("{one} {other}"));
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": self.trims,
            "use_regex": true});
        json!({
            "version": "1.0",
            "added_tokens": added.collect::<Vec<_>>(),
            "pre_tokenizer": bytes,
            "decoder": bytes,
            "post_processor": {"type": "Sequence", "processors": [bytes, {
                "type": "TemplateProcessing",
                "single": single,
                "pair": [sequence],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
            }]},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges.collect::<Vec<_>>()},
        })
    }

    pub fn encoder(&self) -> (Encoder, ChatTokenizer) {
        let folder = self.folder();
        let tokenizer = ChatTokenizer::of_folder(folder.path()).unwrap();
        let template = self
            .template
            .map(|_| ChatTemplate::of_folder(folder.path()).unwrap());
        (Encoder::new(tokenizer.clone(), template), tokenizer)
    }
}

pub fn write(folder: impl AsRef<Path>, name: &str, content: &str) {
    fs::write(folder.as_ref().join(name), content).unwrap();
}
