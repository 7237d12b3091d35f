//! The papers' recipes, as far as they can be looked at without data and devices.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{path::Path, process::Command};

/// What `--dry-run` says of a recipe.
fn dry_run(recipe: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../recipes/{recipe}.toml"));
    let output = Command::new(env!("CARGO_BIN_EXE_stovepipe"))
        .args(["train", "--dry-run", "--balance", "even", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{recipe}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

/// The parameters of the whole model.
fn parameters(text: &str) -> f64 {
    let all = text.lines().find(|line| line.starts_with("all ")).unwrap();
    all.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn every_recipe_loads_and_says_what_it_would_need() {
    // Published: of AmoebaNet-D (18, 208), 81,505,540 without the auxiliary head; of ViT-Ti on CIFAR-10 with
    // patches of 4, 5,362,762 by hand; of Transformer-L with 13 layers, 785.8 million.
    for (recipe, least, most) in [
        ("amoebanet-imagenet", 81.5e6, 84e6),
        ("amoebanet-cifar10", 29e6, 31e6),
        ("vit-cifar10", 5_362_762.0, 5_362_763.0),
        ("transformer-l", 785.8e6 * 0.999, 785.8e6 * 1.001),
    ] {
        let text = dry_run(recipe);
        let parameters = parameters(&text);
        assert!((least..most).contains(&parameters), "{recipe}: {text}");
        assert!(text.contains("worker 1 keeps "), "{recipe}: {text}");
    }
}

#[test]
fn all_recipes_are_looked_at() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "amoebanet-cifar10",
        "amoebanet-imagenet",
        "transformer-l",
        "vit-cifar10",
    ];
    assert_eq!(names, expected.map(|name| format!("{name}.toml")));
}
