//! Long texts are encoded in pieces, with the tokens of the whole text.

use std::{fmt::Write, fs, path::Path};

use stovepipe_text::Tokenizer;
use tokenizers::Tokenizer as HuggingFace;

fn json(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Generated lines: some empty, some indented, some with characters of several bytes.
fn long_text(bytes: usize) -> String {
    let mut text = String::new();
    for line in 0_u64.. {
        if text.len() >= bytes {
            break;
        }
        let word = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let _ = match line % 7 {
            0 => writeln!(text),
            1 => writeln!(text, "    the cat\t{word}  "),
            2 => write!(text, "naïve 🦀 Ωmega {word} "),
            _ => writeln!(text, "the dog sat on the {word:x} mat, and the cat's"),
        };
    }
    text
}

fn at_once(json: &str, text: &str) -> Vec<u32> {
    let mut tokenizer = HuggingFace::from_bytes(json).unwrap();
    tokenizer.with_padding(None).with_truncation(None).unwrap();
    tokenizer.encode(text, false).unwrap().get_ids().to_vec()
}

fn in_pieces(json: &str, text: &str) -> Vec<u32> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, json).unwrap();
    Tokenizer::read(&path).unwrap().encode(text).unwrap()
}

#[test]
fn tokens_are_those_of_the_whole_text() {
    let (pairs, words, letters) = (json("pairs.json"), json("words.json"), json("letters.json"));
    let with_spaces = pairs.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    assert_ne!(pairs, with_spaces);
    // Marks the beginning, and does not split into words.
    let metaspace =
        r#""type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false"#;
    let marked = letters.replace("\"type\": \"WhitespaceSplit\"", metaspace);
    let marked = marked.replace("\"z\": 25", "\"z\": 25, \"▁\": 26, \"?\": 27");
    let marked = marked.replace("\"unk_token\": null", "\"unk_token\": \"?\"");
    assert_ne!(letters, marked);
    // Lines, one line, and one word.
    let lines = long_text(300_000);
    let texts = [lines.replace('\n', " "), lines, "abz".repeat(50_000)];
    let tokenizers = [&pairs, &with_spaces, &words, &letters, &marked];
    for text in texts {
        for (case, json) in tokenizers.into_iter().enumerate() {
            let (expected, found) = (at_once(json, &text), in_pieces(json, &text));
            let other = expected.iter().zip(&found).position(|(a, b)| a != b);
            assert_eq!((other, expected.len()), (None, found.len()), "{case}");
        }
    }
}
