//! Language models, as a user trains, tests and asks them.

use std::{fs, path::Path, process::Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::running::{over, stovepipe, text};

/// A folder with a text that is learned soon.
fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    let verse = "the more it snows, the more it goes, the more it goes on snowing. ";
    fs::write(directory.path().join("snow.txt"), verse.repeat(60)).unwrap();
    directory
}

/// Trains a small model on it.
fn train(directory: &Path, out: &str, more: &[&str]) -> Output {
    let arguments = [
        "train",
        "--data",
        "text",
        "--text",
        "snow.txt",
        "--model",
        "transformer-lm",
        "--layers",
        "2",
        "--width",
        "32",
        "--heads",
        "2",
        "--length",
        "24",
        "--epochs",
        "25",
        "--batch-size",
        "12",
        "--lr",
        "0.01",
        "--out",
        out,
    ];
    stovepipe(&over(&arguments, more), directory)
}

fn run(directory: &Path, out: &str, more: &[&str]) -> (Value, String) {
    let output = train(directory, out, more);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary = fs::read(directory.join(out).join("summary.json")).unwrap();
    (
        serde_json::from_slice(&summary).unwrap(),
        text(&output.stdout),
    )
}

#[test]
fn a_language_model_is_trained_tested_and_goes_on_from_a_prompt() {
    let directory = directory();
    let directory = directory.path();
    let (summary, stdout) = run(directory, "a", &["--ema", "0.9"]);
    let number = |value: &Value, key: &str| value.pointer(key).and_then(Value::as_f64).unwrap();
    let perplexity = number(&summary, "/test/perplexity");
    assert!((perplexity.ln() - number(&summary, "/test/loss")).abs() < 1e-9);
    assert!(perplexity < 2.0, "{stdout}");
    assert!(
        stdout.contains("an interpolated 5-gram has perplexity 1."),
        "{stdout}"
    );
    assert!(stdout.contains("a sample, after \""), "{stdout}");

    // Under any number of stages, the saved model is what it was.
    for (stages, averaged) in [("1", false), ("3", false), ("2", true)] {
        let mut arguments = vec!["eval", "a", "--json", "--stages", stages];
        arguments.extend(averaged.then_some("--averaged"));
        let output = stovepipe(&arguments, directory);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let evaluated: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = if averaged { "/averaged" } else { "/test" };
        assert_eq!(Some(&evaluated["test"]), summary.pointer(expected));
    }

    let go_on = |more: &[&str]| {
        let output = stovepipe(
            &[&["eval", "a", "--prompt", "the more it "][..], more].concat(),
            directory,
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let greedy = go_on(&["--temperature", "0", "--tokens", "20"]);
    assert!(
        greedy.starts_with("the more it ") && greedy.len() > 20,
        "{greedy}"
    );
    assert_eq!(
        greedy,
        go_on(&["--temperature", "0", "--tokens", "20", "--stages", "1"])
    );
    assert_ne!(
        go_on(&["--temperature", "9", "--tokens", "40"]),
        go_on(&["--temperature", "9", "--tokens", "40", "--seed", "1"])
    );
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_stages() {
    let directory = directory();
    let directory = directory.path();
    // The embedding's weights are the softmax's; dropout draws; gradients of two mini-batches wait for each other.
    let more = |stages: &'static str| {
        [
            "--stages",
            stages,
            "--balance",
            "even",
            "--accumulate",
            "2",
            "--epochs",
            "1",
        ]
    };
    let files = ["1", "2", "4"].map(|stages| {
        run(directory, stages, &more(stages));
        fs::read(directory.join(stages).join("model.safetensors")).unwrap()
    });
    assert!(files[0] == files[1] && files[1] == files[2]);
}

#[test]
fn bad_texts_tokenizers_and_questions_are_errors() {
    let directory = directory();
    let directory = directory.path();
    fs::write(directory.join("empty.txt"), "").unwrap();
    fs::write(directory.join("short.txt"), "hello").unwrap();
    fs::write(directory.join("latin.txt"), b"na\xefve").unwrap();
    fs::write(directory.join("not.json"), "{}").unwrap();
    for (arguments, expected) in [
        (&["--text", "nowhere.txt"][..], "nowhere.txt"),
        (&["--text", "empty.txt"], "empty.txt is empty"),
        (&["--text", "latin.txt"], "latin.txt is not UTF-8: byte 2"),
        (&["--text", "short.txt"], "window"),
        (
            &["--tokenizer", "not.json"],
            "not.json is not a tokenizer.json",
        ),
        (&["--vocabulary", "100"], "vocabulary of 256 tokens"),
        (&["--heads", "5"], "heads"),
        (
            &["--held-out", "1"],
            "held-out is 1, but must be greater than 0 and less than 1",
        ),
        (
            &["--width", "16777216"],
            "the width of the network in a block, four times that of the model, must be from 1 to 16777216, not 67108864",
        ),
        // More than any machine has: it is said before anything is allocated.
        (
            &["--vocabulary", "16777216", "--width", "65536"],
            "the run needs about ",
        ),
        (
            &["--patch", "4"],
            "patch is for vit, not for transformer-lm",
        ),
        (&["--data", "digits"], "text is for text, not for digits"),
        (
            &["--flip", "true"],
            "flip is for cifar10, cifar100 and imagenet, not for text",
        ),
    ] {
        let output = train(directory, "bad", arguments);
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            stderr.contains(expected) && !stderr.contains("panicked"),
            "{arguments:?}: {stderr}"
        );
        assert!(!directory.join("bad").exists());
    }
    run(directory, "a", &["--epochs", "1"]);
    let letters = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../datasets/text/tests/tokenizers/letters.json"
    );
    fs::copy(letters, directory.join("letters.json")).unwrap();
    fs::write(directory.join("verse.txt"), "the more it goes, the more it").unwrap();
    for (arguments, expected) in [
        (&["eval", "nowhere"][..], "nowhere is no run"),
        (&["eval", "a", "--averaged"], "train with --ema"),
        (&["eval", "a", "--prompt", ""], "the prompt is empty"),
        (
            &["eval", "a", "--predict", "snow.txt"],
            "--predict is for models of images",
        ),
        (
            &["eval", "a", "--width", "64"],
            "model.safetensors is of another model: layers.0.",
        ),
        (
            &["eval", "a", "--width", "64"],
            " is [256, 32], not [256, 64]",
        ),
        (&["eval", "a", "--width", "64"], " more"),
        (
            &["eval", "a", "--layers", "3"],
            "of another model: it lacks layers.3.",
        ),
        (&["eval", "a", "--layers", "1"], "it also has layers."),
        (
            &["eval", "a", "--tokenizer", "letters.json"],
            "letters.json has a vocabulary of 26 tokens, but the run's own tokenizer one of 256",
        ),
        (
            &["eval", "a", "--vocabulary", "200"],
            "vocabulary of 256 tokens, but the model one of 200",
        ),
        (
            &["eval", "a", "--data", "digits"],
            "config.toml has text, which is for text, not for digits: take it out there",
        ),
        (&["eval", "a", "--tokens", "5"], "--prompt"),
        (
            &["eval", "a", "--epochs", "5"],
            "--epochs is for training, not for eval",
        ),
        (
            &["eval", "a", "--batch-size", "0"],
            "batch-size is 0, but must be at least 1",
        ),
        (
            &["eval", "a", "--prompt", "x", "--temperature", "-1"],
            "the temperature must be finite and at least 0, not -1",
        ),
        (
            &["eval", "a", "--text", "verse.txt"],
            "the held-out part has 3 tokens",
        ),
        (
            &["eval", "a", "--all", "--held-out", "0.5"],
            "cannot be used with",
        ),
        (
            &["eval", "a", "--stages", "9"],
            "9 stages are more than the model's 4 layers",
        ),
    ] {
        let output = stovepipe(arguments, directory);
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            stderr.contains(expected) && !stderr.contains("panicked"),
            "{arguments:?}: {stderr}"
        );
    }
}

/// A text of 30 characters is one window of 24 and some more: too short for two parts.
#[test]
fn all_of_another_text_is_scored() {
    let directory = directory();
    let directory = directory.path();
    run(directory, "a", &["--epochs", "1"]);
    let config = fs::read_to_string(directory.join("a/config.toml")).unwrap();
    // Left to the tokenizer, and written down.
    assert!(config.contains("vocabulary = 256"), "{config}");

    fs::write(
        directory.join("verse.txt"),
        "the more it goes, the more it ",
    )
    .unwrap();
    let samples = |more: &[&str]| {
        let output = stovepipe(
            &[&["eval", "a", "--json", "--text"], more].concat(),
            directory,
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        said["samples"].as_u64().unwrap()
    };
    // Each window begins half a window after the one before it.
    assert_eq!(samples(&["verse.txt", "--all"]), 2);
    let (part, all) = (samples(&["snow.txt"]), samples(&["snow.txt", "--all"]));
    assert!((9 * part..=11 * part).contains(&all), "{part} of {all}");
}

/// What a run keeps between steps is known from numbers of parameters alone.
#[test]
fn a_model_that_does_not_fit_is_not_measured() {
    let directory = directory();
    let directory = directory.path();
    let small = ["--layers", "2", "--device-memory", "1000000"];
    let output = train(directory, "a", &small);
    assert!(!output.status.success());
    let stderr = text(&output.stderr);
    assert!(stderr.contains("on cpu, which has 976.6 KiB"), "{stderr}");
    let huge = ["--vocabulary", "16777216", "--width", "65536"];
    let arguments = ["train", "--model", "transformer-lm", "--dry-run"];
    let output = stovepipe(&[&arguments[..], &huge].concat(), directory);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let why = "DOES NOT FIT, so no layer was measured: the run needs about ";
    assert!(stdout.contains(why), "{stdout}");
    assert!(stdout.contains("worker 1 keeps "), "{stdout}");
}
