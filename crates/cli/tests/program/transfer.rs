//! Trainings that start from the weights of others.

use std::{collections::BTreeMap, fs};

use safetensors::{SafeTensors, tensor::TensorView};

use crate::running::{Here, check_contains, check_lacks};

const SMALL: &str = "--layers 3 --filters 4 --per-class 40 --epochs 1";

fn said(more: &str, here: &Here) -> String {
    here.run(&format!("train {SMALL} {more}")).err
}

fn tensors(here: &Here, out: &str) -> BTreeMap<String, Vec<u8>> {
    let file = here.model(out);
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let owned = |(name, tensor): (&str, TensorView)| (name.to_owned(), tensor.data().to_vec());
    tensors.iter().map(owned).collect()
}

#[test]
fn other_digits_get_a_new_head_and_the_same_ones_keep_theirs() {
    let here = Here::new();
    said("--digits 0-4 --out first", &here);
    assert_eq!(here.read("first/classes.txt"), "0\n1\n2\n3\n4\n");

    // As many classes, but others.
    let frozen = "--from first --freeze body --per-class 20";
    let other = format!("{frozen} --digits 5-9 --out then --batch-size 20");
    let expected = "starting from first/model.safetensors, with a new head";
    check_contains(&said(&other, &here), &[expected]);
    let (first, then) = (tensors(&here, "first"), tensors(&here, "then"));
    let changed = first.keys().filter(|name| first[*name] != then[*name]);
    let changed: Vec<_> = changed.collect();
    assert_eq!(changed, ["layers.8.fc.bias", "layers.8.fc.weight"]);
    let config = here.read("then/config.toml").replace('"', "");
    let from = format!("from = {}", here.join("first").display());
    let lines = [
        from.as_str(),
        "freeze = body",
        "digits = 5-9",
        "per-class = 20",
    ];
    check_contains(&config, &lines);

    // Of a checkpoint, the classes are those of its run.
    let checkpoint = fs::read_dir(here.join("first/checkpoints")).unwrap().next();
    let checkpoint = checkpoint.unwrap().unwrap().path();
    let from = format!("--from {}", checkpoint.display());
    let line = format!("--digits 5-9 {from} --out checkpoint");
    check_contains(&said(&line, &here), &["with a new head"]);

    // The same classes keep what was learned of them: a rate of almost nothing changes nothing in the head.
    let same = "--digits 0-4 --from first/model.safetensors --lr 1e-12 --out same";
    check_lacks(&said(same, &here), &["new head"]);
    assert!((here.accuracy("same") - here.accuracy("first")).abs() < 0.1);

    // A file without the names of its classes is known by their number.
    here.write("alone.safetensors", here.model("first"));
    let more = "--from alone.safetensors --out more";
    assert!(said(more, &here).contains("with a new head"));
    let as_many = "--digits 5-9 --from alone.safetensors --out as-many";
    assert!(!said(as_many, &here).contains("new head"));
    let told = format!("{as_many} --new-head true --out told");
    assert!(said(&told, &here).contains("with a new head"));
    let kept = format!("train {SMALL} --from first --new-head false --out kept");
    here.refuse(&kept, "layers.8.fc.bias is [5], not [10]");
}

#[test]
fn a_run_that_started_from_other_weights_resumes_with_its_own() {
    let here = Here::new();
    said("--digits 0-4 --out first", &here);
    said("--digits 5-9 --from first --out then", &here);
    fs::remove_dir_all(here.join("first")).unwrap();
    let stderr = said("--resume --out then --epochs 2", &here);
    check_contains(&stderr, &["resuming after 1 epoch "]);
    check_lacks(&stderr, &["starting from"]);
}

#[test]
fn what_does_not_fit_is_named() {
    let here = Here::new();
    said("--out first", &here);
    here.refuse_all(
        &format!("train {SMALL} --out no"),
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
    );
    here.refuse_all(
        "train --out no",
        "
        --from first --model vit => it also has layers.0.
        --model transformer-lm --new-head true => new-head is for amoebanet-d, amoebanet-b and vit, not for transformer-lm
        ",
    );
    assert!(!here.join("no").exists());
}
