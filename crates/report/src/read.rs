//! The contents of a report, read from a run's folder.

use std::{error::Error, fs, io::ErrorKind, path::Path};

use serde::de::DeserializeOwned;

use crate::{
    confusion::Confusion,
    error::{ReportError, SvgError},
    image::{RunImage, SvgImage},
    lines::Lines,
    mistake::{Mistake, MistakeEntry},
    picture::Picture,
    run::{Epoch, RunSummary, Step},
    settings::RunSettings,
};

/// Larger images are not embedded: the page would be slow on a phone.
const LARGEST_IMAGE: u64 = 4 << 20;
const LARGEST_PICTURE: u64 = 1 << 20;
/// The limit for all pictures together.
const ALL_PICTURES: u64 = 8 << 20;
/// More steps than can be seen, so only every second, fourth and so on is read.
const MOST_STEPS: usize = 1 << 15;

/// The contents of a report. The page leaves out what is empty or `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The run's name.
    pub title: String,
    /// The run's settings.
    pub settings: RunSettings,
    /// Its epochs in ascending order.
    pub epochs: Vec<Epoch>,
    /// Its steps in ascending order, evenly spread if there are too many.
    pub steps: Vec<Step>,
    /// Its results; `None` if it was interrupted or is still running.
    pub summary: Option<RunSummary>,
    /// The timeline of a mini-batch.
    pub timeline: Option<RunImage>,
    /// The memory of a mini-batch over time, as it was predicted.
    pub memory: Option<RunImage>,
    /// A text, such as a language model's sample.
    pub remark: Option<String>,
    /// What the model takes for what.
    pub confusion: Option<Confusion>,
    /// The worst mistakes, the worst one first.
    pub mistakes: Vec<Mistake>,
}

impl Report {
    /// Reads the folder of a run. Missing files are left out, so the run may have been interrupted or
    /// may still be running.
    ///
    /// If `metrics.jsonl` has an epoch again, because the run was resumed before it, the new line
    /// replaces the old one and all after that. An incomplete last line is ignored.
    ///
    /// ```
    /// # let parent = tempfile::tempdir().unwrap();
    /// # let folder = parent.path().join("train-1");
    /// use std::fs;
    /// use stovepipe_report::Report;
    ///
    /// fs::create_dir(&folder)?;
    /// fs::write(folder.join("config.toml"), "[training]\nepochs = 8")?;
    /// let report = Report::read(&folder)?;
    /// assert_eq!(report.title, "train-1");
    /// fs::write(folder.join("report.html"), report.to_html())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not the folder of a run, or a file in it is unreadable or malformed.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let folder = RunFiles(folder);
        let (settings, epochs) = (folder.settings()?, folder.epochs()?);
        let summary = folder.json("summary.json")?;
        if settings.is_none() && epochs.is_none() && summary.is_none() {
            return Err(ReportError::NoRun(folder.0.to_owned()));
        }
        Ok(Self {
            title: folder.title(),
            settings: settings.unwrap_or_default(),
            epochs: epochs.unwrap_or_default(),
            steps: folder.steps()?,
            summary,
            timeline: folder.image("timeline.svg")?,
            memory: folder.image("memory.svg")?,
            remark: folder.text("remark.txt")?,
            confusion: folder.json("confusion.json")?,
            mistakes: folder.mistakes()?,
        })
    }
}

/// The files in a run's folder. Those that are missing are `None`.
struct RunFiles<'a>(&'a Path);

impl RunFiles<'_> {
    /// The folder's name, without the `.partial` of a run that has not finished.
    fn title(&self) -> String {
        // The path may be `.`.
        let path = fs::canonicalize(self.0).unwrap_or_else(|_| self.0.to_owned());
        let name = (path.file_name().unwrap_or(path.as_os_str())).to_string_lossy();
        name.strip_suffix(".partial").unwrap_or(&name).to_owned()
    }

    fn settings(&self) -> Result<Option<RunSettings>, ReportError> {
        let Some(text) = self.text("config.toml")? else {
            return Ok(None);
        };
        let settings = RunSettings::parse(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let (line, reason) = (line_at(text.as_bytes(), at), error.message().to_owned());
            self.malformed("config.toml", line, reason, error)
        });
        settings.map(Some)
    }

    fn epochs(&self) -> Result<Option<Vec<Epoch>>, ReportError> {
        let Some(text) = self.text("metrics.jsonl")? else {
            return Ok(None);
        };
        let mut epochs: Vec<Epoch> = Vec::new();
        for (index, line) in text.split_inclusive('\n').enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str::<Epoch>(line) {
                Ok(epoch) => {
                    // A resumed run repeats epochs.
                    let kept = epochs.partition_point(|earlier| earlier.epoch < epoch.epoch);
                    epochs.truncate(kept);
                    epochs.push(epoch);
                }
                // The writer was interrupted, or has not yet written the rest.
                Err(error) if error.is_eof() && !line.ends_with('\n') => {}
                Err(error) => {
                    return Err(self.malformed("metrics.jsonl", index + 1, reason(&error), error));
                }
            }
        }
        Ok(Some(epochs))
    }

    /// A line that is not whole is left out, as is what a resumed run repeated.
    fn steps(&self) -> Result<Vec<Step>, ReportError> {
        let mut lines = Lines::<Step>::open(self.0)?;
        let (mut steps, mut every) = (Vec::<Step>::new(), 1);
        for index in 0_usize.. {
            let Some(line) = lines.next_line()? else {
                break;
            };
            if !index.is_multiple_of(every) {
                continue;
            }
            let Ok(step) = serde_json::from_slice::<Step>(line) else {
                continue;
            };
            let kept = steps.partition_point(|earlier| earlier.step < step.step);
            steps.truncate(kept);
            steps.push(step);
            if steps.len() > MOST_STEPS {
                every *= 2;
                let mut place = 0..;
                steps.retain(|_| {
                    place
                        .next()
                        .is_some_and(|place: usize| place.is_multiple_of(2))
                });
            }
        }
        Ok(steps)
    }

    fn image(&self, name: &'static str) -> Result<Option<RunImage>, ReportError> {
        match self.size(name)? {
            Some(bytes) if bytes > LARGEST_IMAGE => Ok(Some(RunImage::Linked { bytes })),
            _ => {
                let image = self.text(name)?.map(SvgImage::parse).transpose();
                let malformed =
                    |error: SvgError| self.malformed(name, error.line(), error.to_string(), error);
                Ok(image.map_err(malformed)?.map(RunImage::Embedded))
            }
        }
    }

    fn mistakes(&self) -> Result<Vec<Mistake>, ReportError> {
        let entries: Option<Vec<MistakeEntry>> = self.json("mistakes.json")?;
        let mut bytes_left = ALL_PICTURES;
        let mistake = |entry: MistakeEntry| {
            let picture = self.picture(&entry, &mut bytes_left)?;
            Ok(Mistake { entry, picture })
        };
        entries.into_iter().flatten().map(mistake).collect()
    }

    /// The picture of a mistake, if it exists and is not too large.
    fn picture(
        &self,
        entry: &MistakeEntry,
        bytes_left: &mut u64,
    ) -> Result<Option<Picture>, ReportError> {
        let Some(name) = entry.picture.as_ref().map(|path| path.as_str()) else {
            return Ok(None);
        };
        match self.size(name)? {
            Some(size) if size <= LARGEST_PICTURE.min(*bytes_left) => *bytes_left -= size,
            _ => return Ok(None),
        }
        let picture = self.bytes(name)?.map(Picture::new).transpose();
        let path = self.0.join(name);
        picture.map_err(|source| ReportError::Picture { path, source })
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReportError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let value = serde_json::from_str(&text);
        value.map_err(|error| self.malformed(name, error.line(), reason(&error), error))
    }

    fn text(&self, name: &str) -> Result<Option<String>, ReportError> {
        let text = self.bytes(name)?.map(String::from_utf8).transpose();
        text.map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let line = line_at(error.as_bytes(), at);
            self.malformed(name, line, "this is not UTF-8 text".to_owned(), error)
        })
    }

    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ReportError> {
        self.if_exists(name, |path| fs::read(path))
    }

    fn size(&self, name: &str) -> Result<Option<u64>, ReportError> {
        self.if_exists(name, |path| fs::metadata(path).map(|file| file.len()))
    }

    fn if_exists<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Path) -> std::io::Result<T>,
    ) -> Result<Option<T>, ReportError> {
        let path = self.0.join(name);
        match read(&path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ReportError::File { path, source }),
        }
    }

    fn malformed(
        &self,
        name: &str,
        line: usize,
        reason: String,
        source: impl Error + Send + Sync + 'static,
    ) -> ReportError {
        ReportError::Malformed {
            path: self.0.join(name),
            // Errors of an empty file have line 0.
            line: line.max(1),
            reason,
            source: Box::new(source),
        }
    }
}

/// The line of a byte, counted from 1.
fn line_at(text: &[u8], byte: usize) -> usize {
    let before = text.iter().take(byte);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// The message of a JSON error, without its line and column.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map(|(reason, _)| reason);
    reason.unwrap_or(&text).to_owned()
}
