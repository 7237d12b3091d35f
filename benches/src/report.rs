//! Tables, printed and saved.

use std::{fmt::Write, fs, path::Path};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use crate::{
    Failure,
    machine::{Machine, date},
};

/// What a benchmark found: printed as it comes, saved as JSON at the end.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    date: String,
    command: String,
    machine: Machine,
    settings: Value,
    notes: Vec<String>,
    tables: Vec<Table>,
}

impl Report {
    /// Begins the report of a benchmark and prints where it runs.
    ///
    /// # Errors
    ///
    /// If the settings cannot be written as JSON.
    pub fn begin(bench: &'static str, settings: &impl Serialize) -> Result<Self, Failure> {
        let report = Self {
            bench,
            date: date(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            machine: Machine::this(),
            settings: serde_json::to_value(settings)?,
            notes: Vec::new(),
            tables: Vec::new(),
        };
        let Machine {
            cpu, threads, load, ..
        } = &report.machine;
        let load = load.map_or(String::new(), |load| format!(", load {load}"));
        println!("{bench}: {cpu}, {threads} threads{load}, {}", report.date);
        Ok(report)
    }

    /// Prints a note and keeps it.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        println!("\n{note}");
        self.notes.push(note);
    }

    /// Prints a table and keeps it.
    pub fn table(&mut self, table: Table) {
        println!("\n{}", table.text());
        self.tables.push(table);
    }

    /// Saves everything as `FOLDER/BENCH.json`.
    ///
    /// # Errors
    ///
    /// If the folder or the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), Failure> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}.json", self.bench));
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")?;
        println!("\nsaved in {}", path.display());
        Ok(())
    }
}

impl Report {
    /// Saves notes and tables as `FOLDER/BENCH.md`.
    ///
    /// # Errors
    ///
    /// If the folder or the file cannot be written.
    pub fn save_markdown(&self, folder: &Path) -> Result<(), Failure> {
        let Machine { cpu, threads, .. } = &self.machine;
        let mut text = format!(
            "# {}\n\n{cpu}, {threads} threads, {}",
            self.bench, self.date
        );
        for note in &self.notes {
            let _ = write!(text, "\n\n{note}");
        }
        for table in &self.tables {
            let _ = write!(text, "\n\n{}", table.markdown());
        }
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}.md", self.bench));
        fs::write(&path, text + "\n")?;
        println!("saved in {}", path.display());
        Ok(())
    }
}

/// A column: its key in JSON, and how it is printed.
#[derive(Clone, Debug)]
pub struct Column {
    key: &'static str,
    heading: &'static str,
    decimals: usize,
}

/// A column, called `key` in JSON and `heading` in print, with so many decimals.
#[must_use]
pub fn column(key: &'static str, heading: &'static str, decimals: usize) -> Column {
    Column {
        key,
        heading,
        decimals,
    }
}

/// Rows of values under headings. One source for print and JSON, so that they cannot differ.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: impl Into<Vec<Column>>) -> Self {
        Self {
            title: title.into(),
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: an array of as many values as there are columns.
    ///
    /// # Panics
    ///
    /// If it is something else, which is a mistake in a benchmark.
    pub fn row(&mut self, row: Value) {
        match row {
            Value::Array(row) if row.len() == self.columns.len() => self.rows.push(row),
            other => panic!(
                "{other} is no row of {}: {:?}",
                self.columns.len(),
                self.title
            ),
        }
    }

    fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.cells(row)).collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            let heading = self.columns[column].heading.chars().count();
            cells.fold(heading, usize::max)
        };
        let headings: Vec<_> = (self.columns.iter())
            .map(|c| c.heading.to_owned())
            .collect();
        let mut text = self.title.clone();
        for cells in std::iter::once(&headings).chain(&rows) {
            text.push('\n');
            for (column, cell) in cells.iter().enumerate() {
                let _ = match self.is_text(column) {
                    true => write!(text, "  {cell:<width$}", width = width(column)),
                    false => write!(text, "  {cell:>width$}", width = width(column)),
                };
            }
            text.truncate(text.trim_end().len());
        }
        text
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
        let headings: Vec<_> = (self.columns.iter())
            .map(|c| c.heading.to_owned())
            .collect();
        let rule = (0..self.columns.len()).map(|column| match self.is_text(column) {
            true => "---".to_owned(),
            false => "--:".to_owned(),
        });
        let head = [line(&headings), line(&rule.collect::<Vec<_>>())];
        let rows = self.rows.iter().map(|row| line(&self.cells(row)));
        let lines: Vec<_> = head.into_iter().chain(rows).collect();
        format!("{}\n\n{}", self.title, lines.join("\n"))
    }

    fn cells(&self, row: &[Value]) -> Vec<String> {
        let cells = row.iter().zip(&self.columns);
        cells
            .map(|(value, column)| match value {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                Value::Number(number) if number.is_f64() => {
                    let (number, decimals) = (number.as_f64().unwrap_or(f64::NAN), column.decimals);
                    format!("{number:.decimals$}")
                }
                other => other.to_string(),
            })
            .collect()
    }

    fn is_text(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column].is_string())
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("title", &self.title)?;
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| Row(&self.columns, row))
            .collect();
        map.serialize_entry("rows", &rows)?;
        map.end()
    }
}

/// A row as an object, its columns in order.
struct Row<'a>(&'a [Column], &'a [Value]);

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|column| column.key).zip(self.1))
    }
}

/// A number with no more digits than a measurement has; nothing if there is none.
#[must_use]
pub fn number(value: f64) -> Value {
    match value.is_finite() {
        true => {
            let digits = format!("{value:.4e}");
            json!(digits.parse::<f64>().unwrap_or(value))
        }
        false => Value::Null,
    }
}
