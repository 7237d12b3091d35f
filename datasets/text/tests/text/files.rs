//! Reads files and folders of text.

use std::{fs, path::Path};

use proptest::prelude::*;
use stovepipe_text::{Split, SplitSettings, Text, TextError, Tokenizer};
use tempfile::{TempDir, tempdir};

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// The error of reading `path`, which must begin with `named`.
fn error(path: &Path, named: &Path) -> TextError {
    let error = Text::read(path).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(named.to_str().unwrap()), "{text}");
    error
}

#[test]
fn a_file_with_any_name_is_read_unchanged() {
    for (name, content, expected) in [
        ("poem", "a\r\nb\n", "a\r\nb\n"),
        ("poem.txt", " ünï 🦀", " ünï 🦀"),
        ("poem.json", "\u{feff}{}\u{feff}", "{}\u{feff}"),
        (".hidden", "\0", "\0"),
    ] {
        let folder = folder(&[(name, content.as_bytes())]);
        let text = Text::read(&folder.path().join(name)).unwrap();
        assert_eq!(text, Text::new([expected]), "{name}");
        assert_eq!(text.bytes(), expected.len());
    }
}

#[test]
fn text_files_of_a_folder_are_read_in_order() {
    let folder = folder(&[
        ("b.txt", b"three"),
        ("a/z.md", b"two\n"),
        ("a/deep/er/x.TXT", b"one"),
        ("c.Text", b"four"),
        ("empty.txt", b""),
        ("notes", b"no"),
        ("picture.png", b"\xff"),
        ("x.txt.gz", b"\xff"),
        (".git/y.txt", b"no"),
        (".z.txt", b"no"),
    ]);
    let text = Text::read(folder.path()).unwrap();
    assert_eq!(text, Text::new(["one", "two\n", "three", "four"]));
    let bytes = text.encode(&Tokenizer::bytes()).unwrap();
    let shown = Tokenizer::bytes().decode(&bytes).unwrap();
    assert_eq!(shown, "one\n\ntwo\n\nthree\n\nfour");
    assert_eq!(text.bytes(), shown.len());
}

#[test]
fn a_file_that_is_not_utf8_is_named_with_the_byte() {
    for (content, offset) in [
        (&b"\xff\xfeh\0i\0"[..], 0),
        (b"caf\xe9 noir", 3),
        (b"abc\xe2\x82", 3), // cut short
        (b"\xef\xbb\xbfab\x80", 5),
    ] {
        let folder = folder(&[("a.txt", b"good"), ("b/bad.txt", content)]);
        let file = folder.path().join("b/bad.txt");
        // The error names the file also when a folder is read.
        for path in [folder.path(), &file] {
            let error = error(path, &file);
            assert!(matches!(error, TextError::NotUtf8 { .. }), "{error}");
            let expected = format!("is not UTF-8: byte {offset}, counted from 0,");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}

#[test]
fn a_missing_file_is_an_error() {
    let folder = folder(&[("a.txt", b"good")]);
    for name in ["nowhere.txt", "nowhere/a.txt", "a.txt/b.txt"] {
        let path = folder.path().join(name);
        let error = error(&path, &path);
        assert!(matches!(error, TextError::Unreadable { .. }), "{error}");
    }
}

#[test]
fn a_folder_or_file_without_text_is_an_error() {
    let none = folder(&[("a.png", b"x"), ("sub/b.rs", b"x"), (".c.txt", b"x")]);
    let error_of_none = error(none.path(), none.path());
    assert!(matches!(error_of_none, TextError::NoFiles { .. }));
    let expected = "has no text files: no name in it or its subfolders ends with .txt, .text, .md";
    assert!(error_of_none.to_string().contains(expected));

    let empty = folder(&[("a.txt", b""), ("b.txt", "\u{feff}".as_bytes())]);
    for name in ["", "a.txt", "b.txt"] {
        let path = &empty.path().join(name);
        let error = error(path, path);
        assert!(matches!(error, TextError::Empty { .. }), "{error}");
    }
}

#[test]
fn an_empty_text_has_no_windows() {
    for text in [Text::new([""; 0]), Text::new(["", ""])] {
        assert_eq!(text.bytes(), 0);
        let tokens = text.encode(&Tokenizer::bytes()).unwrap();
        let error = Split::new(tokens, &SplitSettings::default()).unwrap_err();
        assert!(matches!(error, TextError::TooShort { tokens: 0, .. }));
    }
}

#[cfg(unix)]
mod links {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_to_a_file_is_read_and_one_to_a_folder_is_not() {
        let folder = folder(&[("a/x.txt", b"one"), ("y", b"two")]);
        symlink(folder.path(), folder.path().join("a/loop")).unwrap();
        symlink(folder.path(), folder.path().join("a/loop.txt")).unwrap();
        symlink(folder.path().join("y"), folder.path().join("b.txt")).unwrap();
        let text = Text::read(folder.path()).unwrap();
        assert_eq!(text, Text::new(["one", "two"]));
        // The folder itself may be a link.
        let text = Text::read(&folder.path().join("a/loop")).unwrap();
        assert_eq!(text, Text::new(["one", "two"]));
    }

    #[test]
    fn a_link_to_nothing_is_named() {
        let folder = folder(&[("a.txt", b"one")]);
        let link = folder.path().join("b.txt");
        symlink(folder.path().join("gone"), &link).unwrap();
        let error = error(folder.path(), &link);
        assert!(matches!(error, TextError::Unreadable { .. }), "{error}");
    }

    /// Reading it would never end.
    #[test]
    fn a_device_is_not_read() {
        let zeros = Path::new("/dev/zero");
        let error = error(zeros, zeros);
        assert_eq!(error.to_string(), "/dev/zero: neither a file nor a folder");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_are_text_or_an_error(bytes in prop::collection::vec(prop_oneof![4 => 32..127_u8, 1 => any::<u8>()], 1..40)) {
        let folder = folder(&[("a", &bytes)]);
        match (Text::read(&folder.path().join("a")), String::from_utf8(bytes)) {
            (Ok(text), Ok(expected)) => prop_assert_eq!(text, Text::new([expected])),
            (Err(TextError::NotUtf8(_, offset)), Err(error)) => {
                let bytes = error.as_bytes();
                prop_assert!(std::str::from_utf8(&bytes[..offset]).is_ok());
                prop_assert!(offset == bytes.len() - 1 || std::str::from_utf8(&bytes[..=offset]).is_err());
            }
            (found, expected) => prop_assert!(false, "{found:?} of {expected:?}"),
        }
    }
}
