//! The papers' recipes, as far as they can be looked at without data and devices.

use std::{path::Path, process::Command};

/// What `--dry-run` says of a recipe, with flags over it.
fn dry_run(recipe: &str, flags: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../recipes/{recipe}.toml"));
    let output = Command::new(env!("CARGO_BIN_EXE_stovepipe"))
        .args(["train", "--dry-run", "--config"])
        .arg(&path)
        .args(flags)
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
fn every_recipe_loads_and_has_the_parameters_of_its_paper() {
    // Published: of AmoebaNet-D (18, 208), 81,505,540 without the auxiliary head; of ViT-Ti on CIFAR-10 with
    // patches of 4, 5,362,762 by hand; of Transformer-L with 13 layers, 785.8 million.
    for (recipe, least, most) in [
        ("amoebanet-imagenet", 81.5e6, 84e6),
        ("transfer", 81.5e6, 84e6),
        ("amoebanet-cifar10", 29e6, 31e6),
        ("vit-cifar10", 5_362_762.0, 5_362_763.0),
        ("transformer-l", 785.8e6 * 0.999, 785.8e6 * 1.001),
    ] {
        // A device that holds nothing, so that nothing is measured: that would take minutes.
        let text = dry_run(recipe, &["--device-memory", "1"]);
        let parameters = parameters(&text);
        assert!((least..most).contains(&parameters), "{recipe}: {text}");
        assert!(text.contains("worker 1 keeps "), "{recipe}: {text}");
        let why = "DOES NOT FIT, so no layer was measured: the run needs about ";
        assert!(
            text.contains(why) && !text.contains("foretold"),
            "{recipe}: {text}"
        );
    }
}

/// With the recipes' own cuts, schedules and numbers of layers, on layers that are measured in seconds.
#[test]
fn every_recipe_is_foretold_with_its_activations() {
    for (recipe, flags) in [
        (
            "amoebanet-imagenet",
            &["--filters", "8", "--image-size", "96", "--resize", "110"][..],
        ),
        (
            "transfer",
            &[
                "--filters",
                "8",
                "--image-size",
                "96",
                "--resize",
                "110",
                "--cutout",
                "48",
            ],
        ),
        ("amoebanet-cifar10", &["--filters", "8"]),
        ("vit-cifar10", &[]),
        (
            "transformer-l",
            &[
                "--width",
                "256",
                "--feed-forward",
                "1024",
                "--length",
                "128",
            ],
        ),
    ] {
        let text = dry_run(recipe, flags);
        assert!(text.contains("\nforetold: "), "{recipe}: {text}");
        for worker in 0..2 {
            let keeps = format!("worker {worker} keeps about ");
            let line = text.lines().find(|line| line.starts_with(&keeps)).unwrap();
            let (_, activations) = line.split_once("activations ").unwrap();
            assert_ne!(activations, "0 B", "{recipe}: {text}");
        }
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
        "transfer",
        "transformer-l",
        "vit-cifar10",
    ];
    assert_eq!(names, expected.map(|name| format!("{name}.toml")));
}
