//! What crates need before they can be published.

use std::fs;

use crate::metadata::{Package, packages};

/// A page.
const MOST_LINES: usize = 70;

fn published() -> impl Iterator<Item = Package> {
    packages().into_iter().filter(Package::is_published)
}

#[test]
fn a_crate_is_published_unless_it_is_an_example_or_for_tests() {
    for package in packages() {
        let is_own = ["benches", "examples", "upstream"].contains(&&*package.group());
        let is_of_benches = package.folder().ends_with("benches");
        let is_for_tests = package.name == "workspace-hack" || package.name.ends_with("-shuttle");
        let is_kept = is_own || is_of_benches || is_for_tests;
        assert_eq!(package.is_published(), !is_kept, "{}", package.name);
    }
}

#[test]
fn crates_say_what_a_registry_asks_for() {
    let mut count = 0;
    for package in published() {
        let name = &package.name;
        assert!(
            package
                .description
                .as_ref()
                .is_some_and(|text| text.len() > 20),
            "{name}"
        );
        assert_eq!(
            package.license.as_deref(),
            Some("MIT OR Apache-2.0"),
            "{name}"
        );
        assert_eq!(
            package.documentation,
            Some(format!("https://docs.rs/{name}"))
        );
        assert!((1..=5).contains(&package.keywords.len()), "{name}");
        assert!((1..=5).contains(&package.categories.len()), "{name}");
        for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = fs::read_to_string(package.folder().join(file)).unwrap();
            assert_eq!(
                own,
                fs::read_to_string(crate::root().join(file)).unwrap(),
                "{name}"
            );
        }
        // A registry knows no paths.
        for dependency in package.needed() {
            assert_ne!(
                dependency.requirement, "*",
                "{name} needs {}",
                dependency.name
            );
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// A README has the words and examples of the documentation, which has more links, and whose examples are tested.
#[test]
fn a_readme_says_what_the_documentation_says() {
    for package in published() {
        let name = &package.name;
        let readme = fs::read_to_string(package.folder().join("README.md")).unwrap();
        assert!(readme.lines().count() <= MOST_LINES, "{name}");
        assert!(readme.starts_with(&format!("# {name}\n")), "{name}");
        for feature in package.features.keys().filter(|name| *name != "default") {
            let is_listed = readme.contains(&format!("`{feature}`"));
            assert!(
                is_listed,
                "README.md of {name} does not list the feature {feature}"
            );
        }
        let Ok(source) = fs::read_to_string(package.folder().join("src/lib.rs")) else {
            continue; // a program
        };
        let documentation = source.lines().filter_map(|line| line.strip_prefix("//!"));
        let documentation: String = documentation.map(|line| format!("{line}\n")).collect();
        let said = words(&documentation);
        let (_, text) = readme.split_once("\n\n").unwrap();
        let (text, _) = text.rsplit_once("\n\nLicensed under").unwrap();
        let text = text.split("\n\nA part of").next().unwrap();
        for paragraph in text.split("\n\n").map(words) {
            assert!(
                said.contains(&paragraph),
                "README.md of {name} has: {paragraph}"
            );
        }
    }
}

/// The words of a text without links, marks of blocks, and what examples hide.
fn words(text: &str) -> String {
    let lines = text.lines().map(str::trim_start);
    let shown = lines.filter(|line| {
        let is_heading = line.starts_with("# ") && !line.contains(['=', '(', '{', '}', ';', '[']);
        !line.starts_with("```") && *line != "#" && (!line.starts_with("# ") || is_heading)
    });
    let shown: Vec<_> = shown
        .map(|line| line.trim_start_matches("# ").trim_start_matches("## "))
        .collect();
    let mut rest = &*shown.join(" ");
    let mut text = String::new();
    while let Some((before, link)) = rest.split_once("](") {
        text.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let text = text.replace(['[', ']'], "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
