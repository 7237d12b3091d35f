//! The guide quotes programs: its code, output and errors must be theirs.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files of a folder with an ending, one after the other.
fn read(folder: &str, ending: &str) -> String {
    let files = fs::read_dir(root().join(folder)).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|own| own == ending));
    let texts = files.map(|path| fs::read_to_string(path).unwrap());
    texts.collect::<Vec<_>>().join("\n")
}

/// All chapters, and the pages that answer a question.
fn guide() -> String {
    read("docs/src/guide", "md") + &read("docs/src/how-to", "md")
}

/// The blocks of a language, without their fences.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    let parts = text.split(fence.as_str()).skip(1);
    parts
        .map(|part| part.split("\n```").next().unwrap())
        .collect()
}

/// A block as it stands in a function: each line further to the right.
fn indented(block: &str, by: usize) -> String {
    let indent = " ".repeat(by);
    let lines = block.lines().map(|line| {
        if line.is_empty() {
            String::new()
        } else {
            format!("{indent}{line}")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_block_of_rust_stands_in_a_program() {
    let examples = [
        "custom-model",
        "guide",
        "transfer-learning",
        "learner",
        "two-processes",
        "replicas",
    ];
    let sources = examples.map(|name| read(&format!("examples/{name}/src"), "rs"));
    let mut sources = sources.join("\n");
    sources += &read("crates/stovepipe/src", "rs").replace("//! ", "");
    // Chapter 1 has the model of chapter 2 without what the latter adds.
    let lines = sources.lines();
    let plain: Vec<_> = lines.filter(|line| !line.contains("#[layers(")).collect();
    sources += &plain.join("\n").replace(", Layers)", ")");
    let guide = guide();
    let quoted = blocks(&guide, "rust");
    assert!(quoted.len() > 9);
    for block in quoted {
        let stands = |by| sources.contains(&indented(block, by));
        assert!(stands(0) || stands(4) || stands(8), "\n{block}\n");
    }
    // Nothing escapes by another name.
    let named = guide.lines().filter(|line| line.starts_with("```r"));
    assert!(named.into_iter().all(|line| line == "```rust"));
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guide"));
    command.args(arguments).current_dir(directory);
    command.output().unwrap()
}

/// What a chapter prints, in a folder of its own.
fn said(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_diff_is_that_of_a_model_of_burns_examples() {
    let models = ["guide", "mnist", "regression"];
    let guide = guide();
    let shown = blocks(&guide, "diff");
    assert_eq!(shown.len(), models.len());
    for (diff, model) in shown.into_iter().zip(models) {
        let file = |side| root().join(format!("examples/burn-models/src/{side}/{model}.rs"));
        let [before, after] =
            ["before", "after"].map(|side| fs::read_to_string(file(side)).unwrap());
        let side = |sign| {
            let lines = diff.lines().filter(move |line| !line.starts_with(sign));
            lines.map(|line| line.get(1..).unwrap_or_default())
        };
        // What is shown is one stretch of both files.
        let [old, new] = ['+', '-'].map(|other| side(other).collect::<Vec<_>>().join("\n"));
        assert!(before.contains(&old), "{model}\n{old}");
        assert!(after.contains(&new), "{model}\n{new}");
        // And there is no more to it, but for one `use`.
        let added = diff.lines().filter(|line| line.starts_with('+')).count();
        let grown = after.lines().count() - before.lines().count();
        let removed = diff.lines().filter(|line| line.starts_with('-')).count();
        assert_eq!(added - removed + 1, grown, "{model}");
        assert!(added < 10, "{model}");
    }
}

#[test]
fn the_short_chapters_run() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        ("1", "epoch 4: last loss "),
        ("3", "loss "),
        ("4", "same bits"),
        ("5", "by time ["),
        ("6", "recompute always\n  stage 0: activations of 1 "),
        ("7", "layers "),
        ("memory 1000000000", "chosen: never"),
    ] {
        let arguments: Vec<_> = arguments.split(' ').collect();
        let found = said(directory.path(), &arguments);
        assert!(found.contains(says), "{arguments:?}: {found}");
    }
    assert!(directory.path().join("profile.toml").exists());
}

#[test]
fn errors_say_what_the_guide_quotes() {
    let directory = tempfile::tempdir().unwrap();
    let guide = guide();
    let said = said(directory.path(), &["wrong"]);
    // What other stages were doing, in the lines below, differs from run to run.
    let errors = said.lines().filter(|line| line.starts_with("error: "));
    let errors: Vec<_> = errors.collect();
    assert_eq!(errors.len(), 9);
    for error in errors {
        // Which micro-batch's loss it was that showed it differs, too.
        let told = error.rsplit(" is not finite: ").next().unwrap();
        assert!(guide.contains(told), "{error}");
    }
}

/// Begins a training under two stages and ends it with Ctrl-C once it has made a checkpoint.
fn interrupted(directory: &Path, folder: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guide"));
    let command = command.args(["8", folder, "2"]).current_dir(directory);
    let mut training = command.spawn().unwrap();
    let checkpoints = directory.join(format!("{folder}.partial/checkpoints"));
    let made = || fs::read_dir(&checkpoints).is_ok_and(|mut files| files.next().is_some());
    while !made() {
        assert!(training.try_wait().unwrap().is_none(), "it ended before");
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = training.id().to_string();
    let killed = Command::new("kill").args(["-INT", &process]).status();
    assert!(killed.unwrap().success());
    assert!(training.wait().unwrap().success());
}

#[test]
fn a_training_resumes_in_three_stages_and_loads_into_a_struct() {
    let directory = tempfile::tempdir().unwrap();
    let unbroken = said(directory.path(), &["8", "unbroken", "1"]);
    interrupted(directory.path(), "run");
    let rest = said(directory.path(), &["8", "run", "3"]);
    assert!(rest.contains("resumes from epoch-"), "{rest}");

    let run = directory.path().join("run");
    let model = |folder: &str| {
        let file = directory.path().join(folder).join("model.safetensors");
        fs::read(file).unwrap()
    };
    assert!(model("run") == model("unbroken"), "{unbroken}{rest}");
    for file in ["report.html", "config.toml", "timeline.svg", "summary.json"] {
        assert!(run.join(file).exists(), "{file}");
    }

    // The struct gets as many digits right as the pipeline did.
    let by_struct = said(directory.path(), &["10", "run"]);
    let right: f64 = by_struct.split(' ').next().unwrap().parse().unwrap();
    let accuracy = format!("accuracy {:.1} %", 100.0 * right / 360.0);
    assert!(unbroken.contains(&accuracy), "{unbroken}{by_struct}");
}
