//! `stovepipe new`: writes a small project that trains in two stages.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command as Process, ExitCode},
};

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::{
    error::{CliError, usage},
    flags, output,
};

/// The files of a project. `NAME` is its name, and `STOVEPIPE` the line that depends on this library.
const FILES: [(&str, &str); 8] = [
    ("Cargo.toml", include_str!("new/template/manifest.toml")),
    (".gitignore", include_str!("new/template/gitignore")),
    ("README.md", include_str!("new/template/readme.txt")),
    ("src/data.rs", include_str!("new/template/data.rs")),
    ("src/lib.rs", include_str!("new/template/lib.rs")),
    ("src/main.rs", include_str!("new/template/main.rs")),
    ("src/model.rs", include_str!("new/template/model.rs")),
    ("tests/trains.rs", include_str!("new/template/trains.rs")),
];

/// No package can depend on one of its own name.
const NEEDED: [&str; 4] = ["burn", "mimalloc", "stovepipe", "tempfile"];

/// The crate of the library, in a clone.
const CRATE: &str = "crates/stovepipe";

#[derive(Clone, Debug, Args)]
struct NewFlags {
    /// Folder to make; its last part is the project's name
    path: PathBuf,
    /// Clone of Stovepipe to depend on [default: the one that this program was built in, or crates.io]
    #[arg(long, value_name = "DIR")]
    stovepipe: Option<PathBuf>,
}

pub fn command() -> Command {
    let command = NewFlags::augment_args(Command::new("new"));
    flags::finished(command)
        .about("Write a small project that trains in two stages")
        .long_about(None)
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = NewFlags::from_arg_matches(matches)?;
    let dependency = dependency(flags.stovepipe.as_deref())?;
    let name = flags.path.file_name().unwrap_or_default().to_string_lossy();
    let parent = flags
        .path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = fs::canonicalize(parent.unwrap_or(Path::new(".")));
    if let Some(clone) = &dependency.clone
        && parent.is_ok_and(|parent| parent.starts_with(clone))
    {
        return Err(usage!(
            "{name} would be in the clone of Stovepipe, and so in its workspace: name a folder outside"
        ));
    }
    if NEEDED.contains(&&*name) {
        return Err(usage!(
            "{name} is a crate that the project needs: take another name"
        ));
    }
    // Cargo checks the name, and makes a Git repository if there is none.
    let mut cargo = Process::new("cargo");
    let made = match cargo.args(["new", "--bin"]).arg(&flags.path).output() {
        Ok(made) => made,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(usage!(
                "cargo is not there: install Rust from https://rustup.rs"
            ));
        }
        Err(error) => return Err(CliError::file(Path::new("cargo"))(error)),
    };
    let said = String::from_utf8_lossy(&made.stderr);
    if !made.status.success() {
        let line = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("error: "));
        let line = line.unwrap_or("cargo could not make the project");
        return Err(usage!("{line}: name a new folder, such as first-model"));
    }
    let warnings = said.lines().filter(|line| line.starts_with("warning: "));
    warnings.for_each(|line| output::say(&format!("{line}\n")));
    for (file, text) in FILES {
        let name = match file.ends_with(".rs") {
            true => &name.replace('-', "_"),
            false => &*name,
        };
        // A path may have such a word in it: last.
        let text = text
            .replace("NAME", name)
            .replace("STOVEPIPE", &dependency.line);
        let path = flags.path.join(file);
        let folder = path.parent().unwrap_or(&flags.path);
        fs::create_dir_all(folder).map_err(CliError::file(folder))?;
        fs::write(&path, text).map_err(CliError::file(&path))?;
    }
    let shown = flags.path.display().to_string();
    let shown = shlex::try_quote(&shown).unwrap_or_default();
    output::print(&format!(
        "{shown} trains a small model in two stages:\n\n    cd {shown}\n    cargo run --release\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// How a project depends on the library.
struct Dependency {
    /// Its line of the manifest.
    line: String,
    /// Where the library is.
    clone: Option<PathBuf>,
}

fn dependency(clone: Option<&Path>) -> Result<Dependency, CliError> {
    let features = "features = [\"train\"]";
    let is_clone = |clone: &Path| clone.join(CRATE).join("Cargo.toml").is_file();
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let clone = match clone {
        Some(clone) if !is_clone(clone) => {
            let clone = clone.display();
            return Err(usage!(
                "{clone} is no clone of Stovepipe: it has no {CRATE}"
            ));
        }
        Some(clone) => clone,
        None if is_clone(&built_in) => &built_in,
        None => {
            let version = env!("CARGO_PKG_VERSION");
            return Ok(Dependency {
                line: format!("stovepipe = {{ version = \"{version}\", {features} }}"),
                clone: None,
            });
        }
    };
    let clone = fs::canonicalize(clone).map_err(CliError::file(clone))?;
    let path = toml::Value::String(clone.join(CRATE).display().to_string());
    Ok(Dependency {
        line: format!("stovepipe = {{ path = {path}, {features} }}"),
        clone: Some(clone),
    })
}
