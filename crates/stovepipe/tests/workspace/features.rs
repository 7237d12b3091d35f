use std::collections::BTreeSet;

use crate::{cargo, metadata::packages};

/// The crates that a program outside the workspace builds with these features of the facade.
fn built(features: &[&str]) -> BTreeSet<String> {
    let features = features.join(",");
    let of_facade = ["tree", "-p", "stovepipe", "--no-default-features"];
    let listed = ["--features", &features, "-e", "normal", "--prefix", "none"];
    let tree = cargo(&[&of_facade[..], &listed[..], &["--format", "{p}"]].concat());
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    tree.lines().filter_map(name).collect()
}

#[test]
fn the_facade_builds_no_more_than_it_is_asked_for() {
    let parts = ["learner", "train", "verify"];
    let (plain, all) = (built(&[]), built(&parts));
    assert!(plain.contains("stovepipe-pipeline") && plain.contains("burn-flex"));
    for part in parts.map(|part| format!("stovepipe-{part}")) {
        assert!(!plain.contains(&part) && all.contains(&part), "{part}");
    }
    assert!(!plain.contains("burn-train"));
    for of_gpu in ["burn-cubecl", "cubecl", "cudarc", "wgpu"] {
        assert!(!all.contains(of_gpu), "{of_gpu} is built");
    }
}

#[test]
fn backends_are_passed_on_to_burn() {
    let all = packages();
    let of = |name: &str| all.iter().find(|package| package.name == name).unwrap();
    let (facade, engine) = (of("stovepipe"), of("stovepipe-pipeline"));
    for backend in ["cuda", "flex", "metal", "rocm", "vulkan", "wgpu"] {
        let passed = format!("stovepipe-pipeline/{backend}");
        assert_eq!(facade.features[backend], [passed]);
        assert!(engine.features[backend].contains(&format!("burn/{backend}")));
    }
    assert_eq!(facade.features["default"], ["flex"]);
}
