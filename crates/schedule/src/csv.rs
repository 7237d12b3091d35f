//! Schedules as files: the CSV of `torch.distributed.pipelining`.

use ::csv::{ErrorKind, Position, ReaderBuilder, StringRecord, WriterBuilder};

use crate::{Action, ParseActionError, Schedule, ScheduleError, error::LineError, grid::grid};

impl Schedule {
    /// Reads the CSV format of `torch.distributed.pipelining`: a row for each worker, a column for each
    /// clock cycle, and a blank cell where a worker waits. All rows have the same number of cells.
    ///
    /// ```
    /// use stovepipe_schedule::{Schedule, ScheduleError};
    ///
    /// let schedule = Schedule::from_csv("0F0,,,0B0\n,1F0,1B0,\n")?;
    /// assert_eq!(schedule.to_string(), "0F0 0B0\n1F0 1B0");
    /// assert_eq!(schedule.to_csv(), "0F0,,,0B0\n,1F0,1B0,\n");
    /// let ragged = Schedule::from_csv("0F0,,,0B0\n,1F0,1B0\n").unwrap_err();
    /// assert_eq!(ragged.to_string(), "line 2: has 3 cells, but the line before has 4");
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The line, if rows differ in length or a cell is not an action; and those of [`Schedule::new`].
    pub fn from_csv(text: &str) -> Result<Self, ScheduleError> {
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .from_reader(text.as_bytes());
        let rows = reader.records().map(|record| match record {
            Ok(record) => row(&record).map_err(|source| at(text, record.position(), source)),
            Err(error) => Err(at(text, error.position(), unreadable(&error))),
        });
        Self::new(rows.collect::<Result<_, _>>()?)
    }

    /// Writes the CSV format that [`from_csv`](Self::from_csv) reads, each action in the first possible
    /// clock cycle if all actions take one.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut writer = WriterBuilder::new().from_writer(Vec::new());
        for row in grid(self) {
            let cell = |cell: &Option<Action>| cell.map_or(String::new(), |a| a.to_string());
            // Writing rows of equal length to memory cannot fail.
            let _ = writer.write_record(row.iter().map(cell));
        }
        let bytes = writer.into_inner().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn row(record: &StringRecord) -> Result<Vec<Action>, LineError> {
    let cells = record.iter().map(str::trim);
    let actions = cells.filter(|cell| !cell.is_empty()).map(str::parse);
    Ok(actions.collect::<Result<_, ParseActionError>>()?)
}

fn unreadable(error: &::csv::Error) -> LineError {
    match error.kind() {
        &ErrorKind::UnequalLengths {
            expected_len: before,
            len: cells,
            ..
        } => LineError::Cells { cells, before },
        _ => LineError::Csv(error.to_string()),
    }
}

/// An error in the line of a record. The reader's own line number ignores line ends right before the
/// record: it is too low after `\r\n` and after empty lines.
fn at(text: &str, position: Option<&Position>, source: LineError) -> ScheduleError {
    let byte = position.map_or(0, |position| position.byte() as usize);
    let (before, from) = text.as_bytes().split_at(byte.min(text.len()));
    let skipped = from.iter().take_while(|byte| b"\r\n".contains(byte));
    let ends = before.iter().chain(skipped).filter(|&&byte| byte == b'\n');
    ScheduleError::Line {
        line: 1 + ends.count() as u64,
        source,
    }
}
