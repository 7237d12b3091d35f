//! The papers' recipes, as far as they can be checked without data and devices.

use std::fs;

use crate::running::{Here, cases, check_contains, check_lacks, root};

/// What `--dry-run` says of a recipe, which flags change.
fn dry_run(recipe: &str, flags: &str) -> String {
    let path = root().join(format!("recipes/{recipe}.toml"));
    let config = format!("--config {}", path.display());
    Here::new().succeed(&format!("train --dry-run {config} {flags}"))
}

fn parameters(text: &str) -> f64 {
    let all = text.lines().find(|line| line.starts_with("all ")).unwrap();
    all.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn every_recipe_loads_and_has_the_parameters_of_its_paper() {
    // Published: of AmoebaNet-D (18, 208), 81,505,540 without the auxiliary head; of ViT-Ti on CIFAR-10 with
    // patches of 4, 5,362,762 counted; of Transformer-L with 13 layers, 785.8 million.
    for (recipe, least, most) in [
        ("amoebanet-imagenet", 81.5e6, 84e6),
        ("transfer", 81.5e6, 84e6),
        ("amoebanet-cifar10", 29e6, 31e6),
        ("vit-cifar10", 5_362_762.0, 5_362_763.0),
        ("transformer-l", 785.8e6 * 0.999, 785.8e6 * 1.001),
    ] {
        // A device that holds nothing, so that nothing is measured: that would take minutes.
        let text = dry_run(recipe, "--device-memory 1");
        let parameters = parameters(&text);
        assert!((least..most).contains(&parameters), "{recipe}: {text}");
        let why = "DOES NOT FIT, so no layer was measured: the run needs about ";
        check_contains(&text, &["worker 1 keeps ", why]);
        check_lacks(&text, &["predicted"]);
    }
}

/// With the recipes' own cuts, schedules and numbers of layers, on layers that can be measured in seconds.
#[test]
fn the_cost_of_every_recipe_is_predicted_with_its_activations() {
    for (recipe, flags) in cases(
        "
        amoebanet-imagenet => --filters 8 --image-size 96 --resize 110
        transfer => --filters 8 --image-size 96 --resize 110 --cutout 48
        amoebanet-cifar10 => --filters 8
        vit-cifar10 => --batch-size 32
        transformer-l => --width 64 --feed-forward 256 --length 32
        ",
    ) {
        let text = dry_run(recipe, flags);
        assert!(
            text.contains(" (within 10 % in most cases) without the optimizer"),
            "{recipe}: {text}"
        );
        for worker in 0..2 {
            let keeps = format!("worker {worker} needs about ");
            let line = text.lines().find(|line| line.starts_with(&keeps)).unwrap();
            let (_, activations) = line.split_once("activations ").unwrap();
            assert_ne!(activations, "0 B", "{recipe}: {text}");
        }
    }
}

#[test]
fn all_recipes_are_checked() {
    let mut names: Vec<_> = (fs::read_dir(root().join("recipes")).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = "amoebanet-cifar10 amoebanet-imagenet transfer transformer-l vit-cifar10";
    let expected = expected.split(' ').map(|name| format!("{name}.toml"));
    assert_eq!(names, expected.collect::<Vec<_>>());
}
