//! Trainings that start from the weights of others.

use std::{collections::BTreeMap, fs, path::Path};

use safetensors::SafeTensors;
use tempfile::TempDir;

use crate::running::{cases, check_contains, model, refuse, run, summary};

const SMALL: &str = "--layers 3 --filters 4 --epochs 1";

/// What a successful training says.
fn said(more: &str, directory: &Path) -> String {
    run(&format!("train {SMALL} {more}"), directory).err
}

fn tensors(directory: &Path, out: &str) -> BTreeMap<String, Vec<u8>> {
    let file = model(directory, out);
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
    said("--digits 0-4 --out first", path);
    let classes = fs::read_to_string(path.join("first/classes.txt")).unwrap();
    assert_eq!(classes, "0\n1\n2\n3\n4\n");

    // As many classes, but others.
    let frozen = "--from first --freeze body --per-class 20";
    let other = format!("{frozen} --digits 5-9 --out then --batch-size 20");
    let expected = "starting from first/model.safetensors, with a new head";
    check_contains(&said(&other, path), &[expected]);
    let (first, then) = (tensors(path, "first"), tensors(path, "then"));
    let changed: Vec<_> = first
        .keys()
        .filter(|name| first[*name] != then[*name])
        .collect();
    assert_eq!(changed, ["layers.8.fc.bias", "layers.8.fc.weight"]);
    let config = fs::read_to_string(path.join("then/config.toml")).unwrap();
    let lines = [
        "from = \"first\"",
        "freeze = \"body\"",
        "digits = \"5-9\"",
        "per-class = 20",
    ];
    check_contains(&config, &lines);

    // Of a checkpoint, the classes are those of its run.
    let checkpoint = fs::read_dir(path.join("first/checkpoints")).unwrap().next();
    let checkpoint = checkpoint.unwrap().unwrap().path();
    let line = format!(
        "--digits 5-9 --from {} --out checkpoint",
        checkpoint.display()
    );
    check_contains(&said(&line, path), &["with a new head"]);

    // The same classes keep what was learned of them: a rate of almost nothing changes nothing in the head.
    let same = "--digits 0-4 --from first/model.safetensors --lr 1e-12 --out same";
    let stderr = said(same, path);
    assert!(!stderr.contains("new head"), "{stderr}");
    let accuracy = |run: &str| summary(path, run)["test"]["accuracy"].as_f64().unwrap();
    assert!((accuracy("same") - accuracy("first")).abs() < 0.1);

    // A file without the names of its classes is known by their number.
    fs::copy(
        path.join("first/model.safetensors"),
        path.join("alone.safetensors"),
    )
    .unwrap();
    let more = "--from alone.safetensors --out more";
    assert!(said(more, path).contains("with a new head"));
    let as_many = "--digits 5-9 --from alone.safetensors --out as-many";
    assert!(!said(as_many, path).contains("new head"));
    let told = format!("{as_many} --new-head true --out told");
    assert!(said(&told, path).contains("with a new head"));
    let kept = format!("train {SMALL} --from first --new-head false --out kept");
    refuse(&kept, path, "layers.8.fc.bias is [5], not [10]");
}

#[test]
fn a_run_that_started_from_other_weights_resumes_with_its_own() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    said("--digits 0-4 --out first", path);
    said("--digits 5-9 --from first --out then", path);
    fs::remove_dir_all(path.join("first")).unwrap();
    let stderr = said("--resume --out then", path);
    assert!(stderr.contains("resuming after 1 epochs"), "{stderr}");
    assert!(!stderr.contains("starting from"), "{stderr}");
}

#[test]
fn what_does_not_fit_is_named() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    said("--out first", path);
    for (flags, expected) in cases(
        "
        --from nothing.pt => nothing.pt: No such file
        --from first/config.toml => first/config.toml
        --from first --filters 8 => layers.0.
        --freeze 9 => freeze is 9, but the model has 9 layers
        --freeze head => write a number of layers, or body
        --layer-decay 0 => layer-decay is 0, but must be
        --digits 7-12 => not a digit from 0 to 9
        --data cifar10 --digits 5-9 => digits is for digits, not for cifar10
        ",
    ) {
        let line = format!("train {SMALL} {flags} --out no");
        refuse(&line, path, expected);
        assert!(!path.join("no").exists());
    }
    for (flags, expected) in [
        ("--from first --model vit", "it also has layers.0."),
        (
            "--model transformer-lm --new-head true",
            "new-head is for amoebanet-d, amoebanet-b and vit, not for transformer-lm",
        ),
    ] {
        refuse(&format!("train {flags} --out no"), path, expected);
        assert!(!path.join("no").exists());
    }
}
