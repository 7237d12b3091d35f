//! What the documentation shows of `simulate` and `plan` is what these print and draw.

use std::{fs, path::Path};

use crate::{
    docs::files,
    running::{command, root},
};

/// A command's arguments, and what the document says that it prints, if it does.
type Shown = (Vec<String>, Option<String>);

/// The commands of `simulate` and `plan` in a page that say what they print or draw: a block of shell with one or more of them.
fn shown(page: &Path) -> Vec<Shown> {
    let text = fs::read_to_string(page).unwrap();
    let text = text.replace("\\\n", " "); // lines that continue
    let blocks: Vec<_> = text.split("```").collect();
    let mut found = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let lines = block.strip_prefix("sh\n").unwrap_or_default().lines();
        for command in lines.filter_map(|line| line.strip_prefix("cargo run --release -- ")) {
            let between = blocks.get(index + 1).map_or("", |text| text.trim());
            let next = blocks.get(index + 2).filter(|_| between.is_empty());
            let prints = next.and_then(|next| Some(next.strip_prefix("text\n")?.to_owned()));
            let is_own = command.starts_with("simulate") || command.starts_with("plan ");
            if is_own && (command.contains("svg ") || prints.is_some()) {
                let arguments = command.split_whitespace().map(str::to_owned);
                found.push((arguments.collect(), prints));
            }
        }
    }
    found
}

/// Runs what a page shows, in a folder that has the guide's profile, and compares.
fn check(page: &Path) -> usize {
    let profile = Path::new("docs/src/guide/profile.toml");
    let shown = shown(page);
    for (arguments, prints) in &shown {
        let directory = tempfile::tempdir().unwrap();
        for folder in ["docs/src/guide", "docs/src/pictures"] {
            fs::create_dir_all(directory.path().join(folder)).unwrap();
        }
        fs::copy(root().join(profile), directory.path().join(profile)).unwrap();
        let output = command(&[], directory.path()).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}");
        if let Some(prints) = prints {
            let printed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(printed.trim_end(), prints.trim_end(), "{arguments:?}");
        }
        let is_picture = |argument: &String| argument == "--svg" || argument == "--memory-svg";
        if let Some(flag) = arguments.iter().position(is_picture) {
            let drawn = &arguments[flag + 1];
            let committed = fs::read(root().join(drawn)).unwrap();
            let drawn = fs::read(directory.path().join(drawn)).unwrap();
            assert!(committed == drawn, "{arguments:?}");
        }
    }
    shown.len()
}

#[test]
fn commands_print_and_draw_what_the_pages_show() {
    let pages = files(&root().join("docs/src"), "md");
    let found: usize = pages.iter().map(|page| check(page)).sum();
    assert!(found >= 8, "{found}");
}
