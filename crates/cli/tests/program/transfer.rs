//! Trainings that begin with the weights of others.

use std::{collections::BTreeMap, fs, path::Path, process::Output};

use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{stovepipe, text};

const SMALL: [&str; 6] = ["--layers", "3", "--filters", "4", "--epochs", "1"];

fn train(more: &[&str], directory: &Path) -> Output {
    stovepipe(&[&["train"], &SMALL[..], more].concat(), directory)
}

/// What a training says that went well.
fn said(more: &[&str], directory: &Path) -> String {
    let output = train(more, directory);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

fn refused(more: &[&str], directory: &Path) -> String {
    let output = train(more, directory);
    assert!(!output.status.success(), "{more:?}");
    text(&output.stderr)
}

fn tensors(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = fs::read(run.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let pairs = tensors.iter();
    pairs
        .map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec()))
        .collect()
}

#[test]
fn other_digits_get_a_new_head_and_the_same_ones_keep_theirs() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    said(&["--digits", "0-4", "--out", "first"], path);
    let classes = fs::read_to_string(path.join("first/classes.txt")).unwrap();
    assert_eq!(classes, "0\n1\n2\n3\n4\n");

    // As many classes, but others.
    let frozen = ["--from", "first", "--freeze", "body", "--per-class", "20"];
    let flags = [
        &frozen[..],
        &["--digits", "5-9", "--out", "then", "--batch-size", "20"],
    ]
    .concat();
    let stderr = said(&flags, path);
    assert!(
        stderr.contains("begun with first/model.safetensors, with a new head"),
        "{stderr}"
    );
    let (first, then) = (tensors(&path.join("first")), tensors(&path.join("then")));
    let changed: Vec<_> = first
        .keys()
        .filter(|name| first[*name] != then[*name])
        .collect();
    assert_eq!(changed, ["layers.8.fc.bias", "layers.8.fc.weight"]);
    let config = fs::read_to_string(path.join("then/config.toml")).unwrap();
    for line in [
        "from = \"first\"",
        "freeze = \"body\"",
        "digits = \"5-9\"",
        "per-class = 20",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }

    // Of a checkpoint, the classes are those of its run.
    let checkpoint = fs::read_dir(path.join("first/checkpoints")).unwrap().next();
    let checkpoint = checkpoint.unwrap().unwrap().path();
    let flags = ["--digits", "5-9", "--from", checkpoint.to_str().unwrap()];
    let stderr = said(&[&flags[..], &["--out", "checkpoint"]].concat(), path);
    assert!(stderr.contains("with a new head"), "{stderr}");

    // The same classes go on with what was learned of them: a rate of almost nothing leaves the head as it was.
    let same = [
        "--digits",
        "0-4",
        "--from",
        "first/model.safetensors",
        "--lr",
        "1e-12",
    ];
    let stderr = said(&[&same[..], &["--out", "same"]].concat(), path);
    assert!(!stderr.contains("new head"), "{stderr}");
    let accuracy = |run: &str| {
        let summary = fs::read(path.join(run).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_slice(&summary).unwrap();
        summary["test"]["accuracy"].as_f64().unwrap()
    };
    assert!((accuracy("same") - accuracy("first")).abs() < 0.1);

    // A file without the names of its classes is known by their number.
    fs::copy(
        path.join("first/model.safetensors"),
        path.join("alone.safetensors"),
    )
    .unwrap();
    let more = ["--from", "alone.safetensors", "--out", "more"];
    assert!(said(&more, path).contains("with a new head"));
    let as_many = [
        "--digits",
        "5-9",
        "--from",
        "alone.safetensors",
        "--out",
        "as-many",
    ];
    assert!(!said(&as_many, path).contains("new head"));
    let told = [&as_many[..4], &["--new-head", "true", "--out", "told"]].concat();
    assert!(said(&told, path).contains("with a new head"));
    let kept = ["--from", "first", "--new-head", "false", "--out", "kept"];
    let stderr = refused(&kept, path);
    assert!(
        stderr.contains("layers.8.fc.bias is [5], not [10]"),
        "{stderr}"
    );
}

#[test]
fn a_run_that_began_with_other_weights_goes_on_with_its_own() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    said(&["--digits", "0-4", "--out", "first"], path);
    let then = ["--digits", "5-9", "--from", "first", "--out", "then"];
    said(&then, path);
    fs::remove_dir_all(path.join("first")).unwrap();
    let stderr = said(&["--resume", "--out", "then"], path);
    assert!(stderr.contains("going on after 1 epochs"), "{stderr}");
    assert!(!stderr.contains("begun with"), "{stderr}");
}

#[test]
fn what_does_not_fit_is_named() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    said(&["--out", "first"], path);
    for (flags, expected) in [
        (&["--from", "nothing.pt"][..], "nothing.pt: No such file"),
        (&["--from", "first/config.toml"], "first/config.toml"),
        (
            &["--from", "first", "--model", "vit"],
            "it also has layers.0.",
        ),
        (&["--from", "first", "--filters", "8"], "layers.0."),
        (
            &["--freeze", "9"],
            "freeze is 9, but the model has 9 layers",
        ),
        (&["--freeze", "head"], "write a number of layers, or body"),
        (&["--layer-decay", "0"], "layer-decay is 0, but must be"),
        (&["--digits", "7-12"], "no digit from 0 to 9"),
        (
            &["--data", "cifar10", "--digits", "5-9"],
            "digits is for digits, not for cifar10",
        ),
        (
            &["--model", "transformer-lm", "--new-head", "true"],
            "new-head is for amoebanet-d, amoebanet-b and vit",
        ),
    ] {
        let own: Vec<_> = SMALL
            .chunks(2)
            .filter(|flag| !flags.contains(&flag[0]))
            .collect();
        let is_of_images = !flags.contains(&"transformer-lm") && !flags.contains(&"vit");
        let own = if is_of_images {
            own.concat()
        } else {
            Vec::new()
        };
        let output = stovepipe(&[&["train"], flags, &["--out", "no"], &own].concat(), path);
        let stderr = text(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(expected),
            "{flags:?}: {stderr}"
        );
        assert!(!path.join("no").exists());
    }
}
