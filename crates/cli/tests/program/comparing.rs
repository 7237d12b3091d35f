//! `report` and `compare`.

use std::fs;

use serde_json::{Value, json};

use crate::running::{Here, check_contains, check_lacks};

const TRAIN: &str =
    "train --layers 3 --filters 4 --batch-size 48 --max-steps 6 --epochs 1 --save-every 2";

#[test]
fn what_differs_between_two_runs_is_found() {
    let here = Here::new();
    here.succeed(&format!("{TRAIN} --out one"));
    here.succeed(&format!("{TRAIN} --out two --stages 3 --schedule gpipe"));
    let said = here.succeed("compare one two --out comparison.html");
    // Stages change no bit.
    check_contains(
        &said,
        &[
            "pipeline.schedule",
            "gpipe",
            "steps: the same in 6 steps",
            "models: the same in 2 checkpoints and at the end",
        ],
    );
    check_lacks(&said, &["training.lr"]);
    assert!(here.read("comparison.html").contains("<h1>2 runs</h1>"));

    // A checkpoint that is half removed does not count; runs of unlike length do not end alike.
    let oldest = fs::read_dir(here.join("one/checkpoints")).unwrap();
    let oldest = oldest.map(|found| found.unwrap().path()).min().unwrap();
    let (model, away) = (oldest.join("model.safetensors"), here.join("away"));
    fs::rename(&model, &away).unwrap();
    check_contains(
        &here.succeed("compare one two"),
        &[
            "models: the same in 1 checkpoint and at the end (1 checkpoint without all files left out)\n",
        ],
    );
    fs::rename(away, model).unwrap();
    here.succeed(&format!("{TRAIN} --out short --max-steps 5"));
    check_contains(
        &here.succeed("compare one short --replay"),
        &[
            "steps: the same in 5 steps",
            "models: the same in 1 checkpoint; one run ended after step 6, the other after step 5",
            "replay: both are the same",
        ],
    );

    // One bit in the newest checkpoint: of the optimizer's state, then of a weight, there and at the end.
    let newest = fs::read_dir(here.join("two/checkpoints")).unwrap();
    let newest = newest.map(|found| found.unwrap().path()).max().unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap();
    let flip = |path| {
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path, bytes).unwrap();
    };
    flip(newest.join("optimizer-00003-of-00003.safetensors"));
    let first = format!("checkpoint {name} is the first that differs: ");
    check_contains(
        &here.succeed("compare one two"),
        &[&format!("{first}the optimizer's state, "), "1 number of "],
    );
    flip(newest.join("model.safetensors"));
    flip(here.join("two/model.safetensors"));
    fs::remove_file(newest.join("optimizer-00003-of-00003.safetensors")).unwrap();
    let said = here.succeed("compare one two");
    check_contains(&said, &[&first, "1 number of "]);
    check_lacks(&said, &["optimizer"]);

    here.succeed(&format!("{TRAIN} --seed 1 --out three"));
    let said = here.succeed("compare one three");
    check_contains(
        &said,
        &[
            "training.seed",
            "step 1, in epoch 1, is the first that differs: loss ",
        ],
    );
    let table = here.succeed("report one two three --out three.html");
    assert_eq!(table, "");
    let page = here.read("three.html");
    check_contains(
        &page,
        &["<h1>3 runs</h1>", "training.seed", "#by-1:checked"],
    );
    check_lacks(&page, &["<script"]);

    let before = here.read("one/report.html");
    fs::remove_file(here.join("one/report.html")).unwrap();
    here.succeed("report one");
    assert_eq!(here.read("one/report.html"), before);

    // A norm that only one has; then a run that is not over, and one that is not much.
    let steps = here.read("one/steps.jsonl");
    let (first, rest) = steps.split_once('\n').unwrap();
    let norm = first.find("\"gradient_norm\":").unwrap() + "\"gradient_norm\":".len();
    let end = norm + first[norm..].find(',').unwrap();
    let nothing = format!("{}null{}\n{rest}", &first[..norm], &first[end..]);
    here.write("two/steps.jsonl", nothing);
    check_contains(
        &here.succeed("compare one two"),
        &["that differs: gradient norm ", " and –\n"],
    );
    fs::remove_file(here.join("two/model.safetensors")).unwrap();
    fs::remove_file(here.join("two/steps.jsonl")).unwrap();
    fs::remove_dir_all(here.join("two/checkpoints")).unwrap();
    let said = here.succeed("compare one two");
    check_contains(
        &said,
        &[
            "steps: there are none that both have",
            "the same in 0 checkpoints; there are not two",
        ],
    );
    here.succeed("report two");

    here.refuse_all(
        "",
        "
        report nowhere => nowhere is not the folder of a run: name one that train wrote
        report one/config.toml => one/config.toml is not the folder of a run
        report one --out one/config.toml => one/config.toml is not the name of a page
        report => <RUNS>
        compare one => <SECOND>
        compare one nowhere => nowhere is not the folder of a run
        compare one two --out one/steps.jsonl => name a file that ends in .html with --out
        report one --out nowhere/page.html => nowhere
        ",
    );
}

const TEXT: &str = "train --data text --text TEXT --model transformer-lm --layers 2 --width 16 --heads 2 \
                    --length 16 --batch-size 8 --stages 2 --micro-batches 4 --balance even --dropout 0.1 \
                    --warmup-epochs 0 --epochs 1 --save-every 5 --keep-last 50 --held-out 0.2";

/// One bit of one character of the training text, in the first quarter.
fn with_a_bit_flipped(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let at = (bytes.len() / 5..).find(|&at| bytes[at].is_ascii_lowercase());
    bytes[at.unwrap()] ^= 1;
    bytes
}

/// The runs `one` and `two`, of texts of so many words that differ in one bit.
fn runs_that_part(words: usize, save_every: usize) -> Here {
    let here = Here::new();
    let text = text_of(words);
    here.write("one.txt", &text);
    here.write("two.txt", with_a_bit_flipped(&text));
    for name in ["one", "two"] {
        let train = TEXT.replace("TEXT", &format!("{name}.txt"));
        let train = train.replace("--save-every 5", &format!("--save-every {save_every}"));
        here.succeed(&format!("{train} --checksums --out {name}"));
    }
    here
}

#[test]
fn a_replay_names_the_pass_in_which_two_runs_part() {
    let here = runs_that_part(3000, 5);
    let said = here.succeed("compare one two --replay");
    // The bit is a character of one sample, whose embedding is the first to differ.
    let step = first_other(&here, "one", "two");
    check_contains(
        &said,
        &[
            &format!("checksums: step {step} is the first that differs: the loss"),
            &format!(": step {step} is the first that differs: the forward pass of micro-batch "),
            " in layer 0 (",
            "and of no other micro-batch",
        ],
    );
    let from = (step - 1) / 5 * 5;
    check_contains(
        &said,
        &[&format!(
            "replayed from checkpoint epoch-0000-batch-{from:07}: "
        )],
    );

    // A sum that was other only once: it is not so when the run is trained again.
    here.succeed(&format!(
        "{} --checksums --out three",
        TEXT.replace("TEXT", "one.txt")
    ));
    change_sum(&here, "three");
    fs::remove_dir_all(here.join("three/checkpoints")).unwrap();
    let said = here.succeed("compare one three --replay");
    check_contains(
        &said,
        &[
            "checksums: step 12 is the first that differs: the gradients of layer 1 (",
            "replayed from the start: both are the same in ",
            "one was the same\n",
            "three was different in step 12: the gradients of layer 1 (",
            "that does not happen again",
        ],
    );
    // A run that was resumed with other settings had other learning rates before.
    let one = TEXT.replace("TEXT", "one.txt");
    here.succeed(&format!("{one} --checksums --out four"));
    here.succeed(&format!("{one} --checksums --out four --resume --epochs 2"));
    change_sum(&here, "four");
    check_contains(
        &here.succeed("compare one four --replay"),
        &[
            "replay: four had another learning rate in step ",
            "resumed with other settings",
        ],
    );
    let left = fs::read_dir(here.join("")).unwrap();
    let mut left = left.map(|entry| entry.unwrap().file_name());
    assert!(!left.any(|name| name.to_string_lossy().contains("replay")));
    let said = here.succeed("compare one one --replay");
    check_contains(
        &said,
        &["checksums: the same in ", "there is nothing to find"],
    );

    here.succeed(&format!("{TRAIN} --out windows --schedule pipedream"));
    here.succeed(&format!(
        "{TRAIN} --out other --schedule pipedream --seed 1"
    ));
    here.refuse_all(
        "",
        "
        compare windows other --replay => --replay: windows was trained with the schedule pipedream
        train --checksums layers => steps
        ",
    );
}

/// Two replays find the step, the layer and the micro-batch.
#[test]
#[ignore = "takes half a minute; `.ci/extended` runs it"]
fn a_flipped_bit_among_a_thousand_steps_is_found() {
    let here = runs_that_part(34_000, 100);
    let steps = here.read("one/steps.jsonl").lines().count();
    assert!(steps >= 1000, "{steps}");
    let said = here.succeed("compare one two --replay");
    let step = first_other(&here, "one", "two");
    assert!(step > 100, "{step}");
    let from = (step - 1) / 100 * 100;
    check_contains(
        &said,
        &[
            &format!(": step {step} is the first that differs: the forward pass of micro-batch "),
            " in layer 0 (",
            "and of no other micro-batch",
            &format!("replayed from checkpoint epoch-0000-batch-{from:07}: "),
        ],
    );
}

/// Changes the sum of layer 1's gradients in step 12.
fn change_sum(here: &Here, run: &str) {
    let file = format!("{run}/checksums.jsonl");
    let sums = here.read(&file);
    let mut lines: Vec<Value> =
        (sums.lines().map(|line| serde_json::from_str(line).unwrap())).collect();
    lines[11]["gradients"][1] = json!("0123456789abcdef");
    let lines = lines.iter().map(|line| format!("{line}\n"));
    here.write(&file, lines.collect::<String>());
}

/// The first step whose loss differs.
fn first_other(here: &Here, one: &str, other: &str) -> usize {
    let losses = |run: &str| -> Vec<f64> {
        let text = here.read(&format!("{run}/steps.jsonl"));
        let loss = |line| {
            serde_json::from_str::<Value>(line).unwrap()["loss"]
                .as_f64()
                .unwrap()
        };
        text.lines().map(loss).collect()
    };
    let (one, other) = (losses(one), losses(other));
    let mut pairs = one.iter().zip(&other);
    1 + pairs.position(|(one, other)| one != other).unwrap()
}

/// A text of so many words.
fn text_of(words: usize) -> String {
    let word = |index: usize| ["snow ", "falls ", "on ", "the ", "river\n"][index * index % 7 % 5];
    (0..words).map(word).collect()
}
