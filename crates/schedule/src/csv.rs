//! Schedules as files: the CSV of `torch.distributed.pipelining`.

use ::csv::{ErrorKind, Position, ReaderBuilder, StringRecord, WriterBuilder};

use crate::{Action, Schedule, ScheduleError, grid::grid};

impl Schedule {
    /// Reads the CSV format of `torch.distributed.pipelining`: a row for each worker, a column for each
    /// clock cycle, and blank cells where a worker waits. All rows have the same number of cells.
    ///
    /// ```
    /// use stovepipe_schedule::{Schedule, ScheduleError};
    ///
    /// let schedule = Schedule::from_csv("0F0,,,0B0\n,1F0,1B0,\n")?;
    /// assert_eq!(schedule.to_string(), "0F0 0B0\n1F0 1B0");
    /// let ragged = Schedule::from_csv("0F0,,,0B0\n,1F0,1B0\n").unwrap_err();
    /// assert_eq!(ragged.to_string(), "line 2: has 3 cells, but the line before has 4");
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a row is longer or shorter than the first one, or a cell is no action, with the line; or
    /// those of [`Schedule::new`].
    pub fn from_csv(text: &str) -> Result<Self, ScheduleError> {
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .from_reader(text.as_bytes());
        let rows = reader.records().map(|record| match record {
            Ok(record) => row(&record).map_err(|reason| at(text, record.position(), reason)),
            Err(error) => Err(at(text, error.position(), unreadable(&error))),
        });
        Self::new(rows.collect::<Result<_, _>>()?)
    }

    /// Writes the CSV format that [`from_csv`](Self::from_csv) reads, each action in the first clock
    /// cycle in which it can be if all actions take one.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, Schedule, Scheduler};
    /// let schedule = GPipe.schedule(2, 2)?;
    /// assert_eq!(schedule.to_csv(), "0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n");
    /// assert_eq!(Schedule::from_csv(&schedule.to_csv())?, schedule);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut writer = WriterBuilder::new().from_writer(Vec::new());
        for row in grid(self) {
            let cells = row
                .iter()
                .map(|cell| cell.map_or(String::new(), |a| a.to_string()));
            // Writing to memory, rows of equal length: there is nothing that could fail.
            let _ = writer.write_record(cells);
        }
        let bytes = writer.into_inner().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn row(record: &StringRecord) -> Result<Vec<Action>, String> {
    let cells = record.iter().map(str::trim);
    let actions = cells
        .filter(|cell| !cell.is_empty())
        .map(str::parse::<Action>);
    let actions: Result<_, _> = actions.collect();
    actions.map_err(|error| error.to_string())
}

fn unreadable(error: &::csv::Error) -> String {
    match error.kind() {
        ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("has {len} cells, but the line before has {expected_len}"),
        _ => error.to_string(),
    }
}

/// An error in the line of a record. The reader's own count is that before it has passed the line ends
/// in front of the record: too low after `\r\n` and after empty lines.
fn at(text: &str, position: Option<&Position>, reason: String) -> ScheduleError {
    let byte = position.map_or(0, |position| position.byte() as usize);
    let (before, from) = text.as_bytes().split_at(byte.min(text.len()));
    let skipped = from.iter().take_while(|byte| b"\r\n".contains(byte));
    let ends = before.iter().chain(skipped).filter(|&&byte| byte == b'\n');
    ScheduleError::Line {
        line: 1 + ends.count() as u64,
        reason,
    }
}
