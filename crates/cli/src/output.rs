//! Reading, printing and writing.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf, absolute},
};

use console::Term;
use serde_json::Value;
use stovepipe::schedule::format_bytes;

use crate::{
    error::{CliError, usage},
    rank::is_first,
};

/// Bytes of the longest text that is read.
const MOST_READ: u64 = 1 << 30;
/// Columns of the widest picture.
const WIDEST: usize = 1000;

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

    /// Names come from files: what would move a terminal's cursor is escaped.
    pub fn row(&mut self, row: Vec<String>) {
        let cell = |cell: String| visible(&cell).replace('\n', "\\n");
        self.rows.push(row.into_iter().map(cell).collect());
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

/// A number with this many decimals, as a power of ten if it is too long to be read.
pub fn decimals(value: f64, decimals: usize) -> String {
    match value.abs() {
        1e15.. => format!("{value:e}"),
        _ => format!("{value:.decimals$}"),
    }
}

/// A number with as many decimals as it needs, three at most.
pub fn number(value: f64) -> String {
    let text = decimals(value, 3);
    if !text.contains('.') || text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub fn seconds(value: f64) -> String {
    match value {
        1.0.. => format!("{} s", decimals(value, 2)),
        _ => format!("{:.2} ms", 1e3 * value),
    }
}

pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|text| text.parse().ok());
    let of_terminal = || Some(usize::from(Term::stdout().size_checked()?.1));
    columns.or_else(of_terminal).unwrap_or(100).min(WIDEST)
}

/// Whether standard output is a terminal that shows colours, and they are wanted.
pub fn has_colours() -> bool {
    Term::stdout().features().colors_supported()
}

/// Says on standard error what happens, in any process of a job.
pub fn say_in_any(text: &str) {
    let _ = io::stderr().write_all(visible(text).as_bytes());
}

/// Says on standard error what happens, if it can be written: a run does not end because its terminal is gone.
pub fn say(text: &str) {
    if is_first() {
        say_in_any(text);
    }
}

/// Prints a result. Returns whether anybody still reads: `| head` ends quietly.
pub fn print(text: &str) -> Result<bool, CliError> {
    print_raw(&visible(text))
}

/// Prints a text for programs, or one that names nothing and may have colours.
pub fn print_raw(text: &str) -> Result<bool, CliError> {
    if !is_first() {
        return Ok(true);
    }
    let mut out = io::stdout().lock();
    is_read(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Whether what was written to standard output is still read.
pub fn is_read(written: io::Result<()>) -> Result<bool, CliError> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(CliError::Output),
    }
}

/// A text as a terminal can take it, whoever named a file or a class, or made the model that wrote it: control characters are
/// escaped, but for line ends and tabs, and so are those that turn the direction of writing.
fn visible(text: &str) -> String {
    let shown = |character: char| match character {
        '\n' | '\t' => character.to_string(),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => character.escape_default().to_string(),
        _ if character.is_control() => character.escape_default().to_string(),
        _ => character.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Prints JSON if it is asked for, else a text.
pub fn print_either(
    is_json: bool,
    json: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<bool, CliError> {
    if is_json {
        return print_raw(&format!("{:#}\n", json()));
    }
    print(&text())
}

/// The text of a file. An endless one, such as a device, would take all memory.
pub fn read(path: &Path) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(CliError::file(path))?;
    let all = file.take(MOST_READ + 1).read_to_end(&mut bytes);
    if all.map_err(CliError::file(path))? as u64 > MOST_READ {
        let most = format_bytes(MOST_READ);
        return Err(usage!("{} has more than {most}", path.display()));
    }
    let not_text = |_| usage!("{} is not a text file in UTF-8", path.display());
    String::from_utf8(bytes).map_err(not_text)
}

/// The path of a file that can be replaced: that of a link is where it leads.
pub fn replaceable(path: &Path) -> Result<PathBuf, CliError> {
    let shown = path.display();
    match path.canonicalize() {
        Ok(path) if path.is_file() || path.is_dir() => Ok(path),
        Ok(_) => Err(usage!("{shown} is a pipe or a device: name a file")),
        Err(_) if path.is_symlink() => Err(usage!(
            "{shown} is a link to nothing: make the file that it names, or name another"
        )),
        Err(_) => Ok(path.to_owned()),
    }
}

/// Checks that a file can be written, before the work for it begins.
pub fn check_file(path: &Path) -> Result<(), CliError> {
    let is_new = !path.exists();
    // A pipe must not be opened twice.
    if is_new || path.is_file() || path.is_dir() {
        let opened = File::options().create(true).append(true).open(path);
        opened.map_err(CliError::file(path))?;
    }
    if is_new {
        // It may be a link, which stays.
        let _ = path.canonicalize().and_then(fs::remove_file);
    }
    Ok(())
}

/// Checks that different files can be written.
pub fn check_files<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), CliError> {
    let mut others = Vec::new();
    for file in files {
        check_file(file)?;
        let path = absolute(file).map_err(CliError::file(file))?;
        // Several may go to one device, such as /dev/null.
        let is_file = !path.exists() || path.is_file();
        if is_file && others.contains(&path) {
            let path = file.display();
            return Err(usage!(
                "{path} would be written twice: name different files"
            ));
        }
        others.push(path);
    }
    Ok(())
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
    let is_new = !path.exists();
    let written = File::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()
    });
    if written.is_err() && is_new {
        let _ = fs::remove_file(path);
    }
    written.map_err(CliError::file(path))?;
    say(&format!("wrote {}\n", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn generated_text_cannot_control_a_terminal() {
        for (text, expected) in [
            ("naïve 🦀\n\tand more\n", "naïve 🦀\n\tand more\n"),
            ("\u{1b}[2Jgone\u{7}\r", "\\u{1b}[2Jgone\\u{7}\\r"),
            ("\u{9b}31m\0", "\\u{9b}31m\\u{0}"),
            ("cat\u{202e}gnp", "cat\\u{202e}gnp"),
        ] {
            assert_eq!(super::visible(text), expected);
        }
    }
}
