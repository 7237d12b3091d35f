//! What README and guide show of `simulate` and `plan` is what these print and draw.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::running::command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command of a document, and what the document says that it prints, if it does.
struct Shown {
    arguments: Vec<String>,
    prints: Option<String>,
}

/// The commands of `simulate` and `plan` in a document, a block of shell with one command each.
fn shown(document: &str) -> Vec<Shown> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let blocks: Vec<_> = text.split("```").collect();
    let mut found = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let lines = block.strip_prefix("sh\n").unwrap_or_default().lines();
        for command in lines.filter_map(|line| line.strip_prefix("cargo run --release -- ")) {
            let is_own = command.starts_with("simulate") || command.starts_with("plan --profile");
            if is_own && (command.contains("--svg") || document.ends_with("guide.md")) {
                let between = blocks.get(index + 1).map_or("", |text| text.trim());
                let next = blocks.get(index + 2).filter(|_| between.is_empty());
                found.push(Shown {
                    arguments: command.split_whitespace().map(str::to_owned).collect(),
                    prints: next.and_then(|next| Some(next.strip_prefix("text\n")?.to_owned())),
                });
            }
        }
    }
    found
}

/// Runs what a document shows, in a folder that has the guide's profile, and compares.
fn check(document: &str, pictures: &Path) -> usize {
    let shown = shown(document);
    for Shown { arguments, prints } in &shown {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("docs/guide");
        fs::create_dir_all(&own).unwrap();
        let profile = Path::new("docs/guide/profile.toml");
        fs::copy(root().join(profile), directory.path().join(profile)).unwrap();
        let output = command(&[], directory.path()).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}");
        if let Some(prints) = prints {
            let printed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(printed.trim_end(), prints.trim_end(), "{arguments:?}");
        }
        let flag = arguments.iter().position(|argument| argument == "--svg");
        if let Some(flag) = flag {
            let drawn = Path::new(&arguments[flag + 1]);
            let committed = root().join(pictures).join(drawn.file_name().unwrap());
            let drawn = fs::read(directory.path().join(drawn)).unwrap();
            assert!(fs::read(committed).unwrap() == drawn, "{arguments:?}");
        }
    }
    shown.len()
}

#[test]
fn the_readmes_picture_is_what_its_command_draws() {
    assert_eq!(check("README.md", Path::new("docs")), 1);
}

#[test]
fn the_guides_commands_print_and_draw_what_it_shows() {
    assert!(check("docs/guide.md", Path::new("docs/guide")) >= 5);
}
