//! Ways to run the program.

use std::{
    path::Path,
    process::{Command, Output},
};

pub fn command(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stovepipe"));
    command.args(arguments).current_dir(directory);
    command
}

pub fn stovepipe(arguments: &[&str], directory: &Path) -> Output {
    command(arguments, directory).output().unwrap()
}

/// A subcommand with flags and their values, but for those that `more` has as well, and `more`.
pub fn over<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let (subcommand, flags) = arguments.split_first().unwrap();
    let kept = flags.chunks(2).filter(|flag| !more.contains(&flag[0]));
    [
        &[*subcommand],
        &*kept.flatten().copied().collect::<Vec<_>>(),
        more,
    ]
    .concat()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
