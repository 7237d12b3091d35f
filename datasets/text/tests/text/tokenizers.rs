//! Bytes, and Hugging Face tokenizers from files that `tokenizers/make.py` made.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use stovepipe_text::{Text, TextError, TextStream, Tokenizer};

fn path(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokenizers");
    Path::new(folder).join(name)
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::read(&path(&format!("{name}.json"))).unwrap()
}

fn text() -> String {
    fs::read_to_string(path("text.txt")).unwrap()
}

/// From Hugging Face's Python package, without truncation and padding.
#[test]
fn tokens_equal_those_of_hugging_face() {
    let expected = fs::read_to_string(path("expected.txt")).unwrap();
    for line in expected.lines() {
        let (name, tokens) = line.split_once(' ').unwrap();
        let tokens = tokens.split(' ').map(|token| token.parse().unwrap());
        let tokens: Vec<u32> = tokens.collect();
        assert_eq!(tokenizer(name).encode(&text()).unwrap(), tokens, "{name}");
    }
    assert_eq!(expected.lines().count(), 3);
}

#[test]
fn the_vocabulary_is_the_largest_token_plus_one() {
    assert_eq!(Tokenizer::bytes().vocabulary(), 256);
    assert_eq!(tokenizer("pairs").vocabulary(), 280);
    assert_eq!(tokenizer("letters").vocabulary(), 26);
    // Seven words and an added one, but the last word has number 9.
    let words = tokenizer("words");
    assert_eq!(words.vocabulary(), 10);
    assert_eq!(words.encode("<|end|> mat").unwrap(), [7, 9]);
}

#[test]
fn a_model_with_a_smaller_vocabulary_is_an_error() {
    let words = tokenizer("words");
    assert!(words.check_vocabulary(10).is_ok());
    assert!(words.check_vocabulary(32_000).is_ok());
    let error = words.check_vocabulary(9).unwrap_err();
    let expected = "the tokenizer has a vocabulary of 10 tokens, but the model one of 9: \
                    use the model's tokenizer, or a model with 10 tokens";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn byte_pairs_decode_to_the_text() {
    let pairs = tokenizer("pairs");
    let tokens = pairs.encode(&text()).unwrap();
    assert!(tokens.len() < text().len());
    assert_eq!(pairs.decode(&tokens).unwrap(), text());
}

#[test]
fn unknown_tokens_are_skipped_or_marked() {
    let pairs = tokenizer("pairs");
    assert_eq!(pairs.decode(&[0, 1_000, 33]).unwrap(), "<|endoftext|>A");
    let (bytes, words) = (Tokenizer::bytes(), tokenizer("words"));
    assert_eq!(bytes.decode(&[65, 1_000]).unwrap(), "A\u{fffd}");
    assert_eq!(words.decode(&[1, 7, 8, 2]).unwrap(), "the <|end|> cat");
}

#[test]
fn other_files_are_not_tokenizers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let missing = Tokenizer::read(&path).unwrap_err();
    assert!(matches!(missing, TextError::Unreadable { .. }), "{missing}");
    let model = r#"{"model": 3}"#;
    for content in ["", "{}", "[1, 2]", model, "not JSON", "\u{feff}{}"] {
        fs::write(&path, content).unwrap();
        let error = Tokenizer::read(&path).unwrap_err();
        assert!(matches!(error, TextError::NotATokenizer { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
        assert!(text.contains("is not a tokenizer.json"), "{text}");
    }
    fs::write(&path, b"\xff\xfe\x00").unwrap();
    assert!(Tokenizer::read(&path).is_err());
}

#[test]
fn a_tokenizer_of_other_texts_is_an_error() {
    let check = |name: &str, text: &str, expected: &str| {
        let error = Text::new([text]).encode(&tokenizer(name)).unwrap_err();
        assert!(matches!(error, TextError::OtherText { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    // Unknown words have a token, no token, or are removed before.
    check("words", "the bird", "for 4 of the text's 7 characters");
    check("letters", "В начале 12", "for 9 of the text's 9 characters");
    check("letters", "ab CDE f", "for 3 of the text's 6 characters");

    let fits = |name: &str, text: &str| Text::new([text]).encode(&tokenizer(name)).unwrap().len();
    assert_eq!(fits("words", "The CAT\n sat  on the mat"), 6);
    assert_eq!(fits("letters", "ten letters and A"), 13);
    assert_eq!(fits("pairs", "В начале 🦀"), 20);
}

#[test]
fn a_tokenizer_that_fails_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let json = fs::read_to_string(self::path("words.json")).unwrap();
    // Its token for unknown words does not exist.
    fs::write(&path, json.replace("\"[UNK]\": 0", "\"a\": 0")).unwrap();
    let tokenizer = Tokenizer::read(&path).unwrap();
    assert_eq!(tokenizer.encode("a cat").unwrap(), [0, 2]);
    for error in [
        tokenizer.encode("a bird").unwrap_err(),
        Text::new(["a bird"]).encode(&tokenizer).unwrap_err(),
    ] {
        assert!(matches!(error, TextError::Tokenizer { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn documents_are_encoded_one_by_one() {
    let both = Text::new(["the cat", "the dog"]);
    assert_eq!(*both.encode(&tokenizer("words")).unwrap(), [1, 2, 1, 3]);
    let bytes = both.encode(&Tokenizer::bytes()).unwrap();
    let shown = Tokenizer::bytes().decode(&bytes).unwrap();
    assert_eq!(shown, "the cat\n\nthe dog");
    assert_eq!(bytes.len(), both.bytes());
}

#[test]
fn a_tokenizer_prints_without_its_words() {
    let shown = format!("{:?} {:?}", Tokenizer::bytes(), tokenizer("words"));
    let expected = "Bytes { vocabulary: 256, .. } HuggingFace { vocabulary: 10, .. }";
    assert_eq!(shown, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_is_encoded_and_decoded(characters in prop::collection::vec(any::<char>(), 0..200)) {
        let text: String = characters.into_iter().collect();
        for tokenizer in [Tokenizer::bytes(), tokenizer("pairs")] {
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocabulary()));
            prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), &*text);
            // All characters are in tokens.
            let counted = Text::new([&*text]).encode(&tokenizer).unwrap();
            prop_assert_eq!(&*counted, &*tokens);
        }
    }

    #[test]
    fn any_tokens_are_decoded(tokens in prop::collection::vec(prop_oneof![0..300_u32, any::<u32>()], 0..100)) {
        for tokenizer in [Tokenizer::bytes(), tokenizer("pairs"), tokenizer("words"), tokenizer("letters")] {
            prop_assert!(tokenizer.decode(&tokens).is_ok());
        }
    }
}

#[test]
fn a_stream_of_tokens_is_their_text() {
    let of_file = ["pairs", "letters", "words"].map(tokenizer);
    for tokenizer in of_file.into_iter().chain([Tokenizer::bytes()]) {
        let tokens = tokenizer.encode(&text()).unwrap();
        let mut stream = TextStream::new(tokenizer.clone());
        let pushed = tokens.iter().map(|&token| stream.push(token).unwrap());
        let pushed: String = pushed.collect();
        let all = pushed + &stream.finish().unwrap();
        assert_eq!(all, tokenizer.decode(&tokens).unwrap());
    }
}
