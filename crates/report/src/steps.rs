//! The lines of `steps.jsonl`.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read},
    path::{Path, PathBuf},
};

use crate::{error::ReportError, run::Step};

/// More bytes than any line has.
const LONGEST_LINE: u64 = 1 << 16;

/// The steps of a run, one after the other.
pub(crate) struct Steps {
    path: PathBuf,
    file: Option<BufReader<File>>,
    line: Vec<u8>,
}

impl Steps {
    /// There are none if the run has no such file.
    pub fn open(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("steps.jsonl");
        let file = match File::open(&path) {
            Ok(file) => Some(BufReader::new(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(ReportError::File { path, source }),
        };
        let line = Vec::new();
        Ok(Self { path, file, line })
    }

    /// The next line, or part of one that is too long to be a step. `None` at the end of the file.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, ReportError> {
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        self.line.clear();
        let read = file.take(LONGEST_LINE).read_until(b'\n', &mut self.line);
        match read {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(&self.line)),
            Err(source) => {
                let path = self.path.clone();
                Err(ReportError::File { path, source })
            }
        }
    }

    /// The next step. A line that is not whole is left out.
    pub fn next(&mut self) -> Result<Option<Step>, ReportError> {
        while let Some(line) = self.next_line()? {
            if let Ok(step) = serde_json::from_slice(line) {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }
}
