//! The documentation: its links lead somewhere, its command lines parse, and it stays short.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use crate::running::{command, root};

/// Folders of the repository that have Markdown in them, or that Markdown names files in.
const FOLDERS: [&str; 10] = [
    ".ci", "benches", "crates", "datasets", "docs", "examples", "models", "recipes", "target",
    "upstream",
];
pub const SUBCOMMANDS: [&str; 12] = [
    "train",
    "eval",
    "export",
    "devices",
    "doctor",
    "plan",
    "simulate",
    "verify",
    "report",
    "compare",
    "new",
    "completions",
];

/// Flags that pages name without a command, but are Cargo's.
const CARGO_FLAGS: [&str; 4] = ["--exclude", "--features", "--release", "--workspace"];

/// All files of a kind in a folder and below it, but for what mdBook builds.
pub fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("docs/book") {
            found.extend(files(&path, kind));
        } else if path.extension().is_some_and(|own| own == kind) {
            found.push(path);
        }
    }
    found
}

fn pages() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).unwrap();
    let top = top.map(|file| file.unwrap().path());
    let top = top.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let below = FOLDERS.iter().filter(|&&folder| folder != "target");
    let below = below.flat_map(|folder| files(&root().join(folder), "md"));
    top.chain(below).collect()
}

#[derive(Default)]
struct Page {
    /// Lines outside of blocks of code, without spans of code.
    prose: String,
    spans: Vec<String>,
    /// Commands in blocks of shell.
    commands: Vec<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap().replace("\\\n", " ");
        let mut page = Self::default();
        for (index, part) in format!("\n{text}").split("\n```").enumerate() {
            let (first, rest) = part.split_once('\n').unwrap_or((part, ""));
            if index % 2 == 0 {
                for (place, span) in part.split('`').enumerate() {
                    if place % 2 == 0 {
                        page.prose += span;
                    } else {
                        page.spans.push(span.replace('\n', " "));
                    }
                }
            } else if first == "sh" {
                let lines = rest.lines().flat_map(|line| line.split("&&"));
                page.commands.extend(lines.map(str::to_owned));
            }
        }
        page
    }

    /// Where its links lead, but for those to the web.
    fn links(&self) -> impl Iterator<Item = &str> {
        let links = self.prose.split("](").skip(1);
        let links = links.map(|rest| rest.split(')').next().unwrap());
        links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
    }
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut seen = HashMap::new();
    let mut found = Vec::new();
    let outside = format!("\n{text}");
    for line in outside.split("\n```").step_by(2).flat_map(str::lines) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        let anchor: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let before: &mut usize = seen.entry(anchor.clone()).or_default();
        found.push(match *before {
            0 => anchor,
            more => format!("{anchor}-{more}"),
        });
        *before += 1;
    }
    found
}

fn broken(page: &Path, link: &str) -> Option<String> {
    let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = match target {
        "" => page.to_owned(),
        target => page.parent().unwrap().join(target),
    };
    if !path.exists() {
        return Some(format!("{}: {link} leads nowhere", page.display()));
    }
    let is_heading = anchor.is_empty() || anchors(&path).iter().any(|known| known == anchor);
    (!is_heading).then(|| format!("{}: {link} is no heading", page.display()))
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut links = 0;
    for path in pages() {
        let page = Page::read(&path);
        links += page.links().count();
        wrong.extend(page.links().filter_map(|link| broken(&path, link)));
        // Files that are named without a link, maybe with arguments.
        let is_path = |span: &&str| {
            let folder = span.split('/').next().unwrap();
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
            FOLDERS.contains(&folder) && span.contains('/') && span.chars().all(plain)
        };
        let spans = page.spans.iter().filter_map(|span| span.split(' ').next());
        for span in spans.filter(is_path) {
            let there = match span.strip_prefix("target/release/") {
                Some(program) => {
                    let program = root().join("benches/src/bin").join(program);
                    program.is_dir() || program.with_extension("rs").is_file()
                }
                None => span.starts_with("target/") || root().join(span).exists(),
            };
            if !there {
                wrong.push(format!("{}: {span} is not there", path.display()));
            }
        }
    }
    assert!(links > 100, "{links}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn types_and_functions_exist() {
    let folders = ["benches", "crates", "datasets", "examples", "models"];
    let sources = folders.map(|name| files(&root().join(name), "rs")).concat();
    let sources = sources.iter().map(|path| fs::read_to_string(path).unwrap());
    let text = sources.collect::<Vec<_>>().join("\n");
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let known: HashSet<_> = text.split(|letter| !is_part(letter)).collect();
    let mut wrong = Vec::new();
    // The changelog speaks of what was.
    let pages = pages().into_iter();
    for path in pages.filter(|path| !path.ends_with("CHANGELOG.md")) {
        for span in Page::read(&path).spans {
            let item = span.split('(').next().unwrap();
            let is_item = item.chars().all(|letter| is_part(letter) || letter == ':');
            let is_name =
                item.contains("::") || item.contains(char::is_uppercase) || item.contains('_');
            for name in item.split("::").filter(|_| is_item && is_name) {
                // R0 is a pass in a picture.
                if !known.contains(name) && name != "R0" {
                    wrong.push(format!("{}: {span}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_book_is_whole() {
    let source = root().join("docs/src");
    let summary = Page::read(&source.join("SUMMARY.md"));
    let listed: Vec<_> = summary.links().map(|link| source.join(link)).collect();
    for page in files(&source, "md") {
        let is_listed = listed.contains(&page) || page.ends_with("SUMMARY.md");
        assert!(is_listed, "{}", page.display());
        // mdBook has a page for Markdown of its own alone.
        for link in Page::read(&page).links() {
            let target = link.split('#').next().unwrap();
            let target = page.parent().unwrap().join(target);
            let is_markdown = target.extension().is_some_and(|kind| kind == "md");
            let whole = |path: &Path| path.canonicalize().unwrap();
            let is_own = !is_markdown || whole(&target).starts_with(whole(&source));
            assert!(is_own, "{}: {link}", page.display());
        }
    }
}

/// The words of a line of shell, without a comment.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
            continue;
        }
        for word in part.split_whitespace() {
            if word.starts_with('#') {
                return words;
            }
            words.push(word.to_owned());
        }
    }
    words
}

/// The features of each package of the workspace.
fn packages() -> HashMap<String, Vec<String>> {
    let folders = ["crates", "models", "datasets", "examples", "benches"].into_iter();
    let folders = folders.flat_map(|name| fs::read_dir(root().join(name)).unwrap());
    let folders = folders.map(|folder| folder.unwrap().path());
    let manifests = folders
        .chain([root().join("benches")])
        .filter_map(|folder| fs::read_to_string(folder.join("Cargo.toml")).ok());
    let packages = manifests.map(|text| {
        let manifest: toml::Table = text.parse().unwrap();
        let features = manifest.get("features").and_then(toml::Value::as_table);
        let features = features.map(|table| table.keys().cloned().collect());
        let name = manifest["package"]["name"].as_str().unwrap().to_owned();
        (name, features.unwrap_or_default())
    });
    packages.collect()
}

/// What follows a flag of Cargo.
fn value_of<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let place = words.iter().position(|word| word == flag)?;
    words.get(place + 1).map(String::as_str)
}

fn helps(directory: &Path) -> HashMap<&'static str, String> {
    let help = |name| {
        let output = command(&[name, "--help-all"], directory).output().unwrap();
        (name, String::from_utf8(output.stdout).unwrap())
    };
    SUBCOMMANDS.map(help).into_iter().collect()
}

/// The flags among words, without values.
fn flags(words: &[String]) -> impl Iterator<Item = &str> {
    let flags = words.iter().filter(|word| word.starts_with("--"));
    flags.map(|word| word.split('=').next().unwrap())
}

fn lists(help: &str, flag: &str) -> bool {
    let mut listed = help.split(|letter: char| letter.is_whitespace() || letter == ',');
    listed.any(|word| word == flag)
}

/// What is wrong with a call of the program. It is called with `--help` at the end: so it reads all that comes before, and
/// runs nothing.
fn misused(
    arguments: &[String],
    helps: &HashMap<&str, String>,
    directory: &Path,
) -> Option<String> {
    let subcommand = arguments.first().map_or("", String::as_str);
    let Some(help) = helps.get(subcommand) else {
        let is_flag = subcommand.is_empty() || ["--help", "--version"].contains(&subcommand);
        return (!is_flag).then(|| format!("`{subcommand}` is no subcommand"));
    };
    if let Some(flag) = flags(arguments).find(|flag| !lists(help, flag)) {
        return Some(format!("`{subcommand} --help-all` does not list {flag}"));
    }
    let output = command(&[], directory)
        .args(arguments)
        .arg("--help")
        .output();
    let output = output.unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn command_lines_are_those_of_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (helps, packages) = (helps(directory), packages());
    let mut wrong = Vec::new();
    let mut checked = 0;
    for path in pages() {
        let mut check = |line: &str| {
            let all = words(line);
            let call: Vec<_> = all.iter().map(String::as_str).take(2).collect();
            let split = all.iter().position(|word| word == "--");
            let (cargo, own) = all.split_at(split.map_or(all.len(), |place| place + 1));
            let is_other = cargo.iter().any(|word| word == "-p" || word == "--bin");
            let found = match call[..] {
                ["stovepipe" | "target/release/stovepipe", ..] => {
                    misused(&all[1..], &helps, directory)
                }
                ["cargo", "run"] if !is_other => misused(own, &helps, directory),
                _ => None,
            };
            let package = value_of(cargo, "-p").filter(|_| call[..1] == ["cargo"]);
            let unknown = package.filter(|&name| !packages.contains_key(name));
            let found = found.or(unknown.map(|name| format!("no package is called {name}")));
            let asked = value_of(cargo, "--features").filter(|_| call == ["cargo", "run"]);
            let known = packages.get(package.unwrap_or("stovepipe-cli"));
            let asked = asked.iter().flat_map(|names| names.split(','));
            let missing = asked
                .filter(|&name| known.is_some_and(|known| known.iter().all(|own| own != name)))
                .map(|name| format!("there is no feature {name}"))
                .next();
            checked += usize::from(!all.is_empty());
            let found = found.or(missing);
            wrong.extend(found.map(|found| format!("{}: {line}: {found}", path.display())));
        };
        let page = Page::read(&path);
        page.commands.iter().for_each(|line| check(line));
        let starts = ["cargo run", "stovepipe "];
        let is_call = |span: &&String| starts.iter().any(|start| span.starts_with(start));
        let calls = page.spans.iter().filter(is_call);
        calls.for_each(|line| check(line));

        // `train --dry-run` and `--balance`: flags alone are looked up.
        let of_program = !path.starts_with(root().join("benches"));
        for span in page.spans.iter().filter(|_| of_program) {
            let all = words(span);
            let first = all.first().map_or("", String::as_str);
            let known = |flag: &str| match helps.get(first) {
                Some(help) => lists(help, flag),
                None if first == flag => {
                    CARGO_FLAGS.contains(&flag) || helps.values().any(|help| lists(help, flag))
                }
                None => true,
            };
            if let Some(flag) = flags(&all).find(|flag| !known(flag)) {
                wrong.push(format!("{}: `{span}`: no {flag}", path.display()));
            }
        }
    }
    assert!(checked > 60, "{checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pages_stay_short() {
    for (page, most) in [("README.md", 1500), ("ARCHITECTURE.md", 2500)] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let words = text.split_whitespace().count();
        assert!(words <= most, "{page} has {words} words");
    }
    let mut long = Vec::new();
    for path in pages() {
        if path.components().any(|part| part.as_os_str() == "results") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let text = format!("\n{text}");
        // What a program prints is as wide as it is, a table's row is one line, and links have no blanks to break at.
        let is_output = |part: &&str| part.starts_with("text\n") || part.starts_with("diff\n");
        let lines = text.split("\n```").filter(|part| !is_output(part));
        let lines = lines.flat_map(str::lines);
        let lines = lines.filter(|line| !line.starts_with('|') && !line.contains("]("));
        let lines = lines.filter(|line| line.chars().count() > 100);
        long.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}
