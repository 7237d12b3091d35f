//! The lines of a run's files that have one for each step.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use crate::{error::ReportError, run::Step};

/// What a line says of a step.
pub(crate) trait Line: DeserializeOwned {
    /// The name of the file.
    const FILE: &str;
    /// More bytes than any line has.
    const LONGEST: u64;

    /// The number of the step.
    fn step(&self) -> usize;
}

impl Line for Step {
    const FILE: &str = "steps.jsonl";
    const LONGEST: u64 = 1 << 16;

    fn step(&self) -> usize {
        self.step
    }
}

/// The lines of a file, one after the other.
pub(crate) struct Lines<T> {
    path: PathBuf,
    file: Option<BufReader<File>>,
    line: Vec<u8>,
    of: PhantomData<T>,
}

impl<T: Line> Lines<T> {
    /// There are none if the run has no such file.
    pub fn open(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join(T::FILE);
        let file = match File::open(&path) {
            Ok(file) => Some(BufReader::new(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(ReportError::File { path, source }),
        };
        Ok(Self {
            path,
            file,
            line: Vec::new(),
            of: PhantomData,
        })
    }

    /// The next line, or part of one that is too long. `None` at the end of the file.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, ReportError> {
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        self.line.clear();
        let read = file.take(T::LONGEST).read_until(b'\n', &mut self.line);
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
    pub fn next(&mut self) -> Result<Option<T>, ReportError> {
        while let Some(line) = self.next_line()? {
            if let Ok(step) = serde_json::from_slice(line) {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }
}

/// How many steps of two runs are the same, and the first one that is not. Steps that one run does not have do not
/// count.
pub(crate) fn first_other<T: Line>(
    folders: [&Path; 2],
    are_same: impl Fn(&T, &T) -> bool,
) -> Result<(usize, Option<[T; 2]>), ReportError> {
    let [mut first, mut second] = [Lines::<T>::open(folders[0])?, Lines::open(folders[1])?];
    let (mut a, mut b) = (first.next()?, second.next()?);
    let mut same = 0;
    while let (Some(one), Some(other)) = (&a, &b) {
        if one.step() < other.step() {
            a = first.next()?;
        } else if one.step() > other.step() {
            b = second.next()?;
        } else if are_same(one, other) {
            same += 1;
            (a, b) = (first.next()?, second.next()?);
        } else {
            return Ok((same, a.zip(b).map(|(one, other)| [one, other])));
        }
    }
    Ok((same, None))
}
