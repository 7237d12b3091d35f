//! Schedules as files: the CSV of `torch.distributed.pipelining`.

use std::io;

use ::csv::{Position, ReaderBuilder, StringRecord, Writer};

use crate::{Action, ParseActionError, Schedule, ScheduleError, action::number, error::LineError};

/// What workers do besides passes in the files of PyTorch. First, for a micro-batch: sending and
/// receiving values and gradients. Then, for a stage: gathering and dropping the parts of its weights,
/// and adding gradients over replicas.
const MESSAGES: [&str; 6] = [
    "SEND_F",
    "RECV_F",
    "SEND_B",
    "RECV_B",
    "WAIT_SEND_F",
    "WAIT_SEND_B",
];
const SHARDS: [&str; 4] = ["UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"];

impl Schedule {
    /// Reads the CSV format of `torch.distributed.pipelining`: a row for each worker, a column for each
    /// clock cycle, and a blank cell where a worker waits.
    ///
    /// All that `_dump_csv` of PyTorch 2.15 writes can be read, in both of its formats. Two passes that
    /// overlap, `(0F4;7B0)OVERLAP_F_B`, run one after the other. Communication, such as `0SEND_F1` and
    /// `2UNSHARD`, is left out: it follows from the passes.
    ///
    /// ```
    /// use stovepipe_schedule::{Schedule, ScheduleError};
    ///
    /// let schedule = Schedule::from_csv("0F0,,,0B0\n,1F0,1B0\n")?;
    /// assert_eq!(schedule.to_string(), "0F0 0B0\n1F0 1B0");
    /// assert_eq!(schedule.to_csv(), "0F0,,,0B0\n,1F0,1B0,\n");
    /// let lowered = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0\n1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0";
    /// assert_eq!(Schedule::from_csv(lowered)?, schedule);
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The line, if a cell is none of these; and those of [`Schedule::new`].
    pub fn from_csv(text: &str) -> Result<Self, ScheduleError> {
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(text.as_bytes());
        let rows = reader.records().map(|record| match record {
            Ok(record) => row(&record).map_err(|source| at(text, record.position(), source.into())),
            Err(error) => {
                let source = LineError::Csv(error.to_string());
                Err(at(text, error.position(), source))
            }
        });
        Self::new(rows.collect::<Result<_, _>>()?)
    }

    /// Writes the CSV format that [`from_csv`](Self::from_csv) reads, each action in the first possible
    /// clock cycle if all actions take one. All rows have the same number of cells.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail.
        let _ = self.write_csv(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Like [`to_csv`](Self::to_csv), to a file. It has [`csv_cells`](Self::csv_cells) cells, most of
    /// them blank if there are many stages.
    ///
    /// # Errors
    ///
    /// If `out` cannot be written.
    pub fn write_csv(&self, out: impl io::Write) -> io::Result<()> {
        let mut writer = Writer::from_writer(out);
        let (cycles, length) = self.cycles();
        for (actions, cycles) in self.workers().iter().zip(cycles) {
            let mut column = 0;
            for (action, cycle) in actions.iter().zip(cycles) {
                for _ in column..cycle {
                    writer.write_field("")?;
                }
                writer.write_field(action.to_string())?;
                column = cycle + 1;
            }
            for _ in column..length {
                writer.write_field("")?;
            }
            writer.write_record(None::<&[u8]>)?;
        }
        writer.flush()
    }

    /// The number of cells that [`write_csv`](Self::write_csv) writes.
    #[must_use]
    pub fn csv_cells(&self) -> usize {
        self.workers().len().saturating_mul(self.cycles().1)
    }
}

fn row(record: &StringRecord) -> Result<Vec<Action>, ParseActionError> {
    let mut actions = Vec::new();
    for cell in record.iter().map(str::trim) {
        let overlap = cell.strip_prefix('(');
        if let Some(both) = overlap.and_then(|cell| cell.strip_suffix(")OVERLAP_F_B")) {
            for action in both.split(';') {
                actions.push(action.trim().parse()?);
            }
        } else if !cell.is_empty() && !is_communication(cell) {
            actions.push(cell.parse()?);
        }
    }
    Ok(actions)
}

fn is_communication(cell: &str) -> bool {
    let word = cell.trim_start_matches(|c: char| c.is_ascii_digit());
    let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let has_stage = number(&cell[..cell.len() - word.len()]).is_some();
    let has_micro_batch = number(&word[name.len()..]).is_some();
    let is_message = MESSAGES.contains(&name) && has_micro_batch;
    let is_of_shards = SHARDS.contains(&name) && name == word;
    has_stage && (is_message || is_of_shards)
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
