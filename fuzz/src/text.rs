//! Text, and tokenizers.

use burn::data::dataset::Dataset;
use stovepipe_text::{Text, TextError, TokenWindows, Tokenizer};

use super::files::{in_folder, parts};

/// The bytes of two files of text come back from their tokens. An error names the folder.
pub fn text(bytes: &[u8]) {
    let [first, second] = parts(bytes);
    let files = [("a.txt", first), ("b/c.md", second)];
    in_folder(&files, |folder| match Text::read(folder) {
        Ok(text) => {
            let bytes = Tokenizer::bytes();
            let tokens = text.encode(&bytes).unwrap();
            assert_eq!(tokens.len(), text.bytes());
            assert_eq!(bytes.decode(&tokens).unwrap(), text.documents().concat());
            match TokenWindows::new(tokens.clone(), 4) {
                Ok(windows) => assert_eq!(windows.len(), (tokens.len() - 1).div_ceil(4)),
                Err(_) => assert!(tokens.len() <= 4),
            }
        }
        Err(error) => {
            let folder = folder.display().to_string();
            assert!(error.to_string().starts_with(&folder), "{error}");
        }
    });
}

/// The tokens of a `tokenizer.json` are in its vocabulary. An error names the file.
pub fn tokenizer(bytes: &[u8]) {
    in_folder(&[("tokenizer.json", bytes)], |folder| {
        let path = folder.join("tokenizer.json");
        let names_file = |error: TextError| {
            let path = path.display().to_string();
            assert!(error.to_string().starts_with(&path), "{error}");
        };
        let tokenizer = match Tokenizer::read(&path) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return names_file(error),
        };
        match tokenizer.encode("The cat sat, naïve\n\n  on 12 mats.") {
            Ok(tokens) => {
                let vocabulary = tokenizer.vocabulary();
                assert!(tokens.iter().all(|&token| (token as usize) < vocabulary));
                if let Err(error) = tokenizer.decode(&tokens) {
                    names_file(error);
                }
            }
            Err(error) => names_file(error),
        }
    });
}
