//! Language models, as a user trains, tests and prompts them.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use crate::running::{
    cases, check_contains, check_refused, model, refuse, run, succeed, succeeds, summary, typed,
};

/// A folder with a text that is learned quickly.
fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    let verse = "the more it snows, the more it goes, the more it goes on snowing. ";
    fs::write(directory.path().join("snow.txt"), verse.repeat(60)).unwrap();
    directory
}

/// A small model of it.
const SMALL: &str = "train --data text --text snow.txt --model transformer-lm --layers 2 --width 32 --heads 2 \
                     --length 24 --epochs 25 --batch-size 12 --lr 0.01";

/// Trains it, and returns what it prints.
fn train(directory: &Path, out: &str, more: &str) -> String {
    succeed(&format!("{SMALL} --out {out} {more}"), directory)
}

#[test]
fn a_language_model_is_trained_tested_and_continues_a_prompt() {
    let directory = directory();
    let directory = directory.path();
    let stdout = train(directory, "a", "--ema 0.9");
    let summary = summary(directory, "a");
    let number = |key: &str| summary.pointer(key).and_then(Value::as_f64).unwrap();
    let perplexity = number("/test/perplexity");
    assert!((perplexity.ln() - number("/test/loss")).abs() < 1e-9);
    assert!(perplexity < 2.0, "{stdout}");
    let parts = [
        "an interpolated 5-gram has perplexity 1.",
        "a sample, after \"",
    ];
    check_contains(&stdout, &parts);

    // Under any number of stages, the saved model is what it was.
    for (flags, expected) in [
        ("--stages 1", "/test"),
        ("--stages 3", "/test"),
        ("--stages 2 --averaged", "/averaged"),
    ] {
        let evaluated = run(&format!("eval a --json {flags}"), directory).json();
        assert_eq!(Some(&evaluated["test"]), summary.pointer(expected));
    }

    let generate = |more: &str| {
        let mut command = typed(&format!("eval a {more}"), directory);
        command.args(["--prompt", "the more it "]);
        succeeds(command).out
    };
    let greedy = generate("--temperature 0 --tokens 20");
    assert!(
        greedy.starts_with("the more it ") && greedy.len() > 20,
        "{greedy}"
    );
    assert_eq!(greedy, generate("--temperature 0 --tokens 20 --stages 1"));
    assert_ne!(
        generate("--temperature 9 --tokens 40"),
        generate("--temperature 9 --tokens 40 --seed 1")
    );
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_stages() {
    let directory = directory();
    let directory = directory.path();
    // The embedding's weights are the softmax's; dropout draws; gradients of two mini-batches are added.
    let files = ["1", "2", "4"].map(|stages| {
        let more = format!("--stages {stages} --balance even --accumulate 2 --epochs 1");
        train(directory, stages, &more);
        model(directory, stages)
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
    for (arguments, expected) in cases(
        "
        --text nowhere.txt => nowhere.txt
        --text empty.txt => empty.txt is empty
        --text latin.txt => latin.txt is not UTF-8: byte 2
        --text short.txt => window
        --tokenizer not.json => not.json is not a tokenizer.json
        --vocabulary 100 => vocabulary of 256 tokens
        --heads 5 => heads
        --held-out 1 => held-out is 1, but must be greater than 0 and less than 1
        --width 16777216 => the width of the network in a block, four times that of the model, must be from 1 to 16777216, not 67108864
        --vocabulary 16777216 --width 65536 => the run needs about 
        --patch 4 => patch is for vit, not for transformer-lm
        --data digits => text is for text, not for digits
        --flip true => flip is for cifar10, cifar100 and imagenet, not for text
        ",
    ) {
        refuse(
            &format!("{SMALL} --out bad {arguments}"),
            directory,
            expected,
        );
        assert!(!directory.join("bad").exists());
    }
    train(directory, "a", "--epochs 1");
    let letters = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../datasets/text/tests/tokenizers/letters.json"
    );
    fs::copy(letters, directory.join("letters.json")).unwrap();
    fs::write(directory.join("verse.txt"), "the more it goes, the more it").unwrap();
    for (arguments, expected) in cases(
        "
        eval nowhere => nowhere is not a run
        eval a --averaged => train with --ema
        eval a --predict snow.txt => --predict is for models of images
        eval a --width 64 => model.safetensors is of another model: layers.0.
        eval a --width 64 =>  is [256, 32], not [256, 64]
        eval a --width 64 =>  more
        eval a --layers 3 => of another model: it lacks layers.3.
        eval a --layers 1 => it also has layers.
        eval a --tokenizer letters.json => letters.json has a vocabulary of 26 tokens, but the run's own tokenizer one of 256
        eval a --vocabulary 200 => vocabulary of 256 tokens, but the model one of 200
        eval a --data digits => config.toml has text, which is for text, not for digits: remove it there
        eval a --tokens 5 => --prompt
        eval a --epochs 5 => --epochs is for training, not for eval
        eval a --batch-size 0 => batch-size is 0, but must be at least 1
        eval a --prompt x --temperature -1 => the temperature must be finite and at least 0, not -1
        eval a --text verse.txt => the held-out part has 3 tokens
        eval a --all --held-out 0.5 => cannot be used with
        eval a --stages 9 => 9 stages are more than the model's 4 layers
        ",
    ) {
        refuse(arguments, directory, expected);
    }
    let mut command = typed("eval a", directory);
    command.args(["--prompt", ""]);
    check_refused(command, "the prompt is empty");
}

/// A text of 30 characters is one window of 24 and some more: too short for two parts.
#[test]
fn all_of_another_text_is_scored() {
    let directory = directory();
    let directory = directory.path();
    train(directory, "a", "--epochs 1");
    let config = fs::read_to_string(directory.join("a/config.toml")).unwrap();
    // It follows from the tokenizer, and is written.
    assert!(config.contains("vocabulary = 256"), "{config}");

    fs::write(
        directory.join("verse.txt"),
        "the more it goes, the more it ",
    )
    .unwrap();
    let samples = |text: &str| {
        let said = run(&format!("eval a --json --text {text}"), directory).json();
        said["samples"].as_u64().unwrap()
    };
    // Each window begins half a window after the one before it.
    assert_eq!(samples("verse.txt --all"), 2);
    let (part, all) = (samples("snow.txt"), samples("snow.txt --all"));
    assert!((9 * part..=11 * part).contains(&all), "{part} of {all}");
}

/// What a run keeps between steps is known from numbers of parameters alone.
#[test]
fn a_model_that_does_not_fit_is_not_measured() {
    let directory = directory();
    let directory = directory.path();
    let small = format!("{SMALL} --out a --layers 2 --device-memory 1000000");
    refuse(&small, directory, "on cpu, which has 976.6 KiB");
    let huge = "--vocabulary 16777216 --width 65536";
    let line = format!("train --model transformer-lm --dry-run {huge}");
    let parts = [
        "DOES NOT FIT, so no layer was measured: the run needs about ",
        "worker 1 keeps ",
    ];
    check_contains(&succeed(&line, directory), &parts);
}
