//! Reading, printing and writing.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use clap::{Arg, ArgMatches, Command, parser::ValueSource};
use serde_json::Value;

use crate::error::CliError;

/// Rows of words in columns.
pub struct Table {
    /// Whether each stands at the right of its column.
    is_right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns by name, separated by `|`; those with `>` before it stand at the right.
    pub fn new(columns: &str) -> Self {
        let mut table = Self {
            is_right: Vec::new(),
            rows: vec![Vec::new()],
        };
        columns.split('|').for_each(|column| table.column(column));
        table
    }

    pub fn column(&mut self, column: &str) {
        let name = column.trim().trim_start_matches('>');
        self.is_right.push(name.len() < column.trim().len());
        self.rows[0].push(name.to_owned());
    }

    /// Names come from files: what would move a terminal's cursor is left out.
    pub fn row(&mut self, row: Vec<String>) {
        let printable = |cell: String| cell.chars().filter(|c| !c.is_control()).collect();
        self.rows.push(row.into_iter().map(printable).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.is_right.len()).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&self.is_right).zip(&widths);
            let cells = cells.map(|((cell, is_right), width)| {
                if *is_right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(formatter, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number with its noun.
pub fn count(number: usize, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{number} {noun}")
}

/// A number with as many decimals as it needs, three at most.
pub fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Seconds as people read them.
pub fn seconds(value: f64) -> String {
    match value {
        1.0.. => format!("{value:.2} s"),
        _ => format!("{:.2} ms", 1e3 * value),
    }
}

/// The terminal's width, if it says so.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    columns.and_then(|text| text.parse().ok()).unwrap_or(100)
}

/// Lets values begin with a minus, so that the error says that a number is out of range.
pub fn with_negative_numbers(command: Command) -> Command {
    command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        if takes_values {
            arg.allow_negative_numbers(true)
        } else {
            arg
        }
    })
}

/// Hides the flags that a subcommand does not use, though it knows them.
pub fn hide(command: Command, is_unused: impl Fn(&Arg) -> bool) -> Command {
    command.mut_args(|arg| {
        let is_unused = is_unused(&arg);
        arg.hide(is_unused)
    })
}

/// Refuses hidden flags, which would do nothing.
pub fn refuse_hidden(command: &Command, matches: &ArgMatches) -> Result<(), CliError> {
    let is_given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
    match hidden.find(is_given).and_then(Arg::get_long) {
        Some(flag) => Err(CliError::NotUsed {
            flag: flag.to_owned(),
            subcommand: command.get_name().to_owned(),
        }),
        None => Ok(()),
    }
}

/// Prints a text, even if nobody reads it any more.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A text that a model made, as a terminal can take it: control characters are escaped, but for line ends and tabs.
pub fn visible(text: &str) -> String {
    let shown = |character: char| match character {
        '\n' | '\t' => character.to_string(),
        _ if character.is_control() => character.escape_default().to_string(),
        _ => character.to_string(),
    };
    text.chars().map(shown).collect()
}

pub fn print_json(value: &Value) {
    print(&format!("{value:#}\n"));
}

/// Reads a file.
pub fn read(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|source| CliError::File {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file, and says so.
pub fn write(path: &Path, text: &str) -> Result<(), CliError> {
    write_with(path, |file| file.write_all(text.as_bytes()))
}

/// Writes a file piece by piece, and says so.
pub fn write_with(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), CliError> {
    let written = File::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()
    });
    written.map_err(|source| CliError::File {
        path: path.to_owned(),
        source,
    })?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn generated_text_cannot_control_a_terminal() {
        for (text, expected) in [
            (
                "plain, naïve 🦀\n\tand more\n",
                "plain, naïve 🦀\n\tand more\n",
            ),
            ("\u{1b}[2Jgone\u{7}\r", "\\u{1b}[2Jgone\\u{7}\\r"),
            ("\u{9b}31m\0", "\\u{9b}31m\\u{0}"),
        ] {
            assert_eq!(super::visible(text), expected);
        }
    }
}
