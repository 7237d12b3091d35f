//! Tables, printed and saved.

use std::{fmt::Write, fs, path::Path};

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::{
    Failure,
    machine::{HostInfo, date},
};

/// The results of a benchmark: printed as they arrive, saved as JSON at the end.
#[derive(Debug, Serialize)]
pub struct BenchReport {
    bench: &'static str,
    date: String,
    command: String,
    machine: HostInfo,
    settings: Value,
    notes: Vec<String>,
    tables: Vec<ReportTable>,
}

impl BenchReport {
    /// Starts the report of a benchmark and prints where it runs.
    pub fn begin(bench: &'static str, settings: &impl Serialize) -> Result<Self, Failure> {
        let (date, machine) = (date(), HostInfo::this());
        let load = (machine.load).map_or(String::new(), |l| format!(", load {l}"));
        let HostInfo { cpu, threads, .. } = &machine;
        println!("{bench}: {cpu}, {threads} threads{load}, {date}");
        Ok(Self {
            bench,
            date,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            machine,
            settings: serde_json::to_value(settings)?,
            notes: Vec::new(),
            tables: Vec::new(),
        })
    }

    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        println!("\n{note}");
        self.notes.push(note);
    }

    pub fn table(&mut self, table: ReportTable) {
        println!("\n{}", table.text());
        self.tables.push(table);
    }

    /// Saves everything as `FOLDER/BENCH.json`.
    pub fn save(&self, folder: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        save_file(folder, &format!("{}.json", self.bench), &text)
    }

    /// Saves notes and tables as `FOLDER/BENCH.md`.
    pub fn save_markdown(&self, folder: &Path) -> Result<(), Failure> {
        let HostInfo { cpu, threads, .. } = &self.machine;
        let (bench, date) = (self.bench, &self.date);
        let mut text = format!("# {bench}\n\n{cpu}, {threads} threads, {date}");
        let tables = self.tables.iter().map(ReportTable::markdown);
        for paragraph in self.notes.iter().cloned().chain(tables) {
            let _ = write!(text, "\n\n{paragraph}");
        }
        save_file(folder, &format!("{}.md", self.bench), &(text + "\n"))
    }
}

/// Writes a file into a folder, which is created if needed, and prints its path.
pub fn save_file(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    let path = folder.join(name);
    fs::write(&path, text)?;
    println!("\nsaved in {}", path.display());
    Ok(())
}

/// A value of a row, with the JSON key, the heading and the printed decimals of its column.
#[derive(Clone, Debug)]
pub struct Cell {
    key: &'static str,
    heading: &'static str,
    decimals: usize,
    value: Value,
}

/// A value of the column `key`. Fractions keep the five digits that a measurement has; NaN and
/// infinity become null.
pub fn cell(
    key: &'static str,
    heading: &'static str,
    decimals: usize,
    value: impl Into<Value>,
) -> Cell {
    let cell = exact_cell(key, heading, decimals, value);
    let rounded = (cell.value.as_f64().filter(|_| cell.value.is_f64()))
        .and_then(|number| format!("{number:.4e}").parse::<f64>().ok());
    Cell {
        value: rounded.map_or(cell.value, Value::from),
        ..cell
    }
}

/// A value of the column `key` with all its digits.
pub fn exact_cell(
    key: &'static str,
    heading: &'static str,
    decimals: usize,
    value: impl Into<Value>,
) -> Cell {
    Cell {
        key,
        heading,
        decimals,
        value: value.into(),
    }
}

impl Cell {
    fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Number(number) if number.is_f64() => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                format!("{number:.*}", self.decimals)
            }
            other => other.to_string(),
        }
    }
}

/// Rows of values. Print and JSON have one source, so that they cannot differ.
#[derive(Clone, Debug, Serialize)]
pub struct ReportTable {
    title: String,
    #[serde(serialize_with = "as_objects")]
    rows: Vec<Vec<Cell>>,
}

/// Each row as an object, its columns in order.
fn as_objects<S: Serializer>(rows: &[Vec<Cell>], serializer: S) -> Result<S::Ok, S::Error> {
    struct Row<'a>(&'a [Cell]);

    impl Serialize for Row<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().map(|cell| (cell.key, &cell.value)))
        }
    }

    serializer.collect_seq(rows.iter().map(|row| Row(row)))
}

impl ReportTable {
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. All rows of a table must have the same columns.
    pub fn row(&mut self, row: impl Into<Vec<Cell>>) {
        self.rows.push(row.into());
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let headings = self.rows.first().into_iter();
        let headings = headings.map(|row| row.iter().map(|c| c.heading.to_owned()).collect());
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(Cell::text).collect());
        headings.chain(rows).collect()
    }

    fn text(&self) -> String {
        let lines = self.lines();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let mut text = self.title.clone();
        for line in &lines {
            text.push('\n');
            for (column, cell) in line.iter().enumerate() {
                let width = width(column).unwrap_or_default();
                let _ = if self.is_text(column) {
                    write!(text, "  {cell:<width$}")
                } else {
                    write!(text, "  {cell:>width$}")
                };
            }
            text.truncate(text.trim_end().len());
        }
        text
    }

    fn markdown(&self) -> String {
        let mut lines = self.lines();
        let columns = 0..lines.first().map_or(0, Vec::len);
        let rule = columns.map(|column| if self.is_text(column) { "---" } else { "--:" });
        lines.insert(1.min(lines.len()), rule.map(str::to_owned).collect());
        let lines = lines.iter().map(|line| format!("| {} |", line.join(" | ")));
        format!("{}\n\n{}", self.title, lines.collect::<Vec<_>>().join("\n"))
    }

    fn is_text(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column].value.is_string())
    }
}
