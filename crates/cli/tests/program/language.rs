//! Language models, as a user trains, tests and prompts them.

use std::{fs, io::Read, process::Stdio};

use serde_json::Value;

use crate::running::{Here, cases, check_contains, check_refused, root, succeeds};

/// A folder with a text that is learned quickly.
fn directory() -> Here {
    let here = Here::new();
    let verse = "the more it snows, the more it goes, the more it goes on snowing. ";
    here.write("snow.txt", verse.repeat(60));
    here
}

const SMALL: &str = "train --data text --text snow.txt --model transformer-lm --layers 2 --width 32 --heads 2 \
                     --length 24 --epochs 25 --batch-size 12 --lr 0.01";

fn train(here: &Here, out: &str, more: &str) -> String {
    here.succeed(&format!("{SMALL} --out {out} {more}"))
}

#[test]
fn a_language_model_is_trained_tested_and_continues_a_prompt() {
    let here = directory();
    let stdout = train(&here, "a", "--ema 0.9");
    let summary = here.summary("a");
    let number = |key: &str| summary.pointer(key).and_then(Value::as_f64).unwrap();
    let perplexity = number("/test/perplexity");
    assert!((perplexity.ln() - number("/test/loss")).abs() < 1e-9);
    assert!(perplexity < 2.0, "{stdout}");
    let five_gram = "an interpolated 5-gram has perplexity 1.";
    check_contains(&stdout, &[five_gram, "a sample, after \""]);

    // Under any number of stages, the saved model is what it was.
    for (flags, expected) in [
        ("--stages 1", "/test"),
        ("--stages 3", "/test"),
        ("--stages 2 --averaged", "/averaged"),
    ] {
        let evaluated = here.json_of(&format!("eval a {flags}"));
        assert_eq!(Some(&evaluated["test"]), summary.pointer(expected));
    }

    let generate = |more: &str| {
        let mut command = here.typed(&format!("eval a {more}"));
        command.args(["--prompt", "the more it "]);
        succeeds(command).out
    };
    let greedy = generate("--temperature 0 --tokens 20");
    assert!(greedy.starts_with("the more it ") && greedy.len() > 20);
    assert_eq!(greedy, generate("--temperature 0 --tokens 20 --stages 1"));
    let random = "--temperature 9 --tokens 40";
    assert_ne!(generate(random), generate(&format!("{random} --seed 1")));
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_stages() {
    let here = directory();
    // The embedding's weights are the softmax's; dropout draws; gradients of two mini-batches are added.
    let files = ["1", "2", "4"].map(|stages| {
        let more = format!("--stages {stages} --balance even --accumulate 2 --epochs 1");
        train(&here, stages, &more);
        here.model(stages)
    });
    assert!(files[0] == files[1] && files[1] == files[2]);
}

#[test]
fn bad_texts_tokenizers_and_questions_are_errors() {
    let here = directory();
    here.write("empty.txt", "");
    here.write("short.txt", "hello");
    here.write("latin.txt", b"na\xefve");
    here.write("not.json", "{}");
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
        here.refuse(&format!("{SMALL} --out bad {arguments}"), expected);
        assert!(!here.join("bad").exists());
    }
    train(&here, "a", "--epochs 1");
    let letters = root().join("datasets/text/tests/tokenizers/letters.json");
    fs::copy(letters, here.join("letters.json")).unwrap();
    here.write("verse.txt", "the more it goes, the more it");
    here.refuse_all(
        "",
        "
        eval nowhere => nowhere: No such file
        eval a --averaged => train with --ema
        eval a --predict snow.txt => --predict is for models of images
        eval a --layers 3 => --layers is not for eval, since it is the run's own: leave it out
        train --data text --from a --layers 2 --length 24 --width 64 --out b => model.safetensors is of another model: layers.0.
        train --data text --from a --layers 2 --length 24 --width 64 --out b =>  is [256, 32], not [256, 64]
        train --data text --from a --layers 2 --length 24 --width 64 --out b =>  more
        train --data text --from a --layers 3 --length 24 --width 32 --out b => of another model: it lacks layers.3.
        train --data text --from a --layers 1 --length 24 --width 32 --out b => it also has layers.
        eval a --tokenizer letters.json => letters.json has a vocabulary of 26 tokens, but the run's own tokenizer one of 256
        eval a --data digits => --data is not for eval, since it is the run's own: leave it out
        eval a --tokens 5 => --prompt
        eval a --epochs 5 => --epochs is not for eval, since it is for training: leave it out
        eval a --batch-size 0 => batch-size is 0, but must be at least 1
        eval a --prompt x --temperature -1 => the temperature must be finite and at least 0, not -1
        eval a --text verse.txt => the held-out part has too few tokens, 3:
        eval a --all --held-out 0.5 => cannot be used with
        eval a --stages 9 => 9 stages are more than the model's 4 layers
        ",
    );
    let mut command = here.typed("eval a");
    command.args(["--prompt", ""]);
    check_refused(command, "the prompt is empty");
    let output = here.typed("eval a --prompt x --temperature -1").output();
    assert!(output.unwrap().stdout.is_empty());
}

/// A text of 30 characters is one window of 24 and some more: too short for two parts.
#[test]
fn all_of_another_text_is_scored() {
    let here = directory();
    train(&here, "a", "--epochs 1");
    // It follows from the tokenizer, and is written.
    check_contains(&here.read("a/config.toml"), &["vocabulary = 256"]);

    here.write("verse.txt", "the more it goes, the more it ");
    let samples = |text: &str| {
        let said = here.json_of(&format!("eval a --text {text}"));
        said["samples"].as_u64().unwrap()
    };
    // Each window begins half a window after the one before it.
    assert_eq!(samples("verse.txt --all"), 2);
    let (part, all) = (samples("snow.txt"), samples("snow.txt --all"));
    assert!((9 * part..=11 * part).contains(&all), "{part} of {all}");
}

/// What a run keeps between steps is known from numbers of parameters alone, and what a sample needs from
/// its size.
#[test]
fn a_model_that_does_not_fit_is_not_measured() {
    let here = directory();
    let small = format!("{SMALL} --out a --layers 2 --device-memory 1000000");
    here.refuse(&small, "on cpu, which has 976.6 KiB");
    let huge = "--vocabulary 16777216 --width 65536";
    let line = format!("train --model transformer-lm --dry-run {huge}");
    let why = "DOES NOT FIT, so no layer was measured: the run needs about ";
    check_contains(&here.succeed(&line), &[why, "worker 1 keeps "]);
    let why = "DOES NOT FIT, so no layer was measured: a sample takes at least 48.0 TiB of memory, but only ";
    let line = "train --dry-run --model vit --data imagenet --image-size 16384";
    check_contains(&here.succeed(line), &[why]);
}

/// A text of a million tokens would take hours.
#[test]
fn a_text_appears_as_it_is_generated() {
    let here = directory();
    train(&here, "a", "--epochs 1");
    let mut command = here.typed("eval a --tokens 1000000 --prompt snow");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut text = [0; 60];
    child.stdout.take().unwrap().read_exact(&mut text).unwrap();
    assert!(text.starts_with(b"snow"));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}
