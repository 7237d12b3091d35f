//! From a run's folder to a report.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use crate::{
    error::{ReportError, WrongDrawing},
    mistake::{Mistake, MistakeEntry},
    picture::Picture,
    report::Report,
    run::Epoch,
    settings::Settings,
    timeline::{Drawing, Timeline},
};

/// A larger drawing is not made part of the page: it would be slow on a phone.
const LARGEST_DRAWING: u64 = 4 << 20;
/// The same for a picture, and for all of them.
const LARGEST_PICTURE: u64 = 1 << 20;
const ALL_PICTURES: u64 = 8 << 20;

pub(crate) fn run(folder: &Path) -> Result<Report, ReportError> {
    let folder = Folder(folder);
    let (settings, epochs) = (folder.settings()?, folder.epochs()?);
    let summary = folder.json("summary.json")?;
    if settings.is_none() && epochs.is_none() && summary.is_none() {
        return Err(ReportError::NoRun(folder.0.to_owned()));
    }
    Ok(Report {
        title: folder.title(),
        settings: settings.unwrap_or_default(),
        epochs: epochs.unwrap_or_default(),
        summary,
        timeline: folder.timeline()?,
        remark: folder.text("remark.txt")?,
        mistakes: folder.mistakes()?,
    })
}

struct Folder<'a>(&'a Path);

impl Folder<'_> {
    /// Its name, which ends in `.partial` until the run has ended well.
    fn title(&self) -> String {
        // The path may be `.`, which is no name.
        let path = fs::canonicalize(self.0).unwrap_or_else(|_| self.0.to_owned());
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        name.strip_suffix(".partial").unwrap_or(&name).to_owned()
    }

    fn settings(&self) -> Result<Option<Settings>, ReportError> {
        let Some(text) = self.text("config.toml")? else {
            return Ok(None);
        };
        let settings = Settings::parse(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            self.malformed("config.toml", line_at(text.as_bytes(), at), error.message())
        })?;
        Ok(Some(settings))
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
                    // A run that was resumed does epochs again.
                    let kept = epochs.partition_point(|earlier| earlier.epoch < epoch.epoch);
                    epochs.truncate(kept);
                    epochs.push(epoch);
                }
                // Whoever wrote this line was interrupted, or is about to write the rest.
                Err(error) if error.is_eof() && !line.ends_with('\n') => {}
                Err(error) => {
                    return Err(self.malformed("metrics.jsonl", index + 1, &reason(&error)));
                }
            }
        }
        Ok(Some(epochs))
    }

    fn timeline(&self) -> Result<Option<Timeline>, ReportError> {
        let name = "timeline.svg";
        match self.size(name)? {
            None => Ok(None),
            Some(bytes) if bytes > LARGEST_DRAWING => Ok(Some(Timeline::Large { bytes })),
            Some(_) => {
                let drawing = self.text(name)?.map(Drawing::parse).transpose();
                let wrong = |error: WrongDrawing| self.malformed(name, error.line, &error.reason);
                Ok(drawing.map_err(wrong)?.map(Timeline::Drawn))
            }
        }
    }

    fn mistakes(&self) -> Result<Vec<Mistake>, ReportError> {
        let entries: Option<Vec<MistakeEntry>> = self.json("mistakes.json")?;
        let mut room = ALL_PICTURES;
        let mistake = |entry: MistakeEntry| {
            let picture = self.picture(&entry, &mut room)?;
            Ok(Mistake { entry, picture })
        };
        entries.into_iter().flatten().map(mistake).collect()
    }

    /// The picture of a mistake, if it is there and there is room for it.
    fn picture(
        &self,
        entry: &MistakeEntry,
        room: &mut u64,
    ) -> Result<Option<Picture>, ReportError> {
        let Some(name) = entry.picture.as_ref().map(|path| path.as_str()) else {
            return Ok(None);
        };
        let Some(size) = self.size(name)? else {
            return Ok(None);
        };
        if size > LARGEST_PICTURE.min(*room) {
            return Ok(None);
        }
        *room -= size;
        let picture = self.bytes(name)?.map(Picture::new).transpose();
        picture.map_err(|source| ReportError::Picture {
            path: self.file(name),
            source,
        })
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReportError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let value = serde_json::from_str(&text);
        value.map_err(|error| self.malformed(name, error.line(), &reason(&error)))
    }

    fn text(&self, name: &str) -> Result<Option<String>, ReportError> {
        let text = self.bytes(name)?.map(String::from_utf8).transpose();
        text.map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            self.malformed(name, line_at(error.as_bytes(), at), "this is no UTF-8 text")
        })
    }

    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ReportError> {
        self.if_there(name, |path| fs::read(path))
    }

    fn size(&self, name: &str) -> Result<Option<u64>, ReportError> {
        self.if_there(name, |path| fs::metadata(path).map(|file| file.len()))
    }

    /// None if there is no such file.
    fn if_there<T>(
        &self,
        name: &str,
        ask: impl FnOnce(&Path) -> std::io::Result<T>,
    ) -> Result<Option<T>, ReportError> {
        let path = self.file(name);
        match ask(&path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ReportError::File { path, source }),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn malformed(&self, name: &str, line: usize, reason: &str) -> ReportError {
        ReportError::Malformed {
            path: self.file(name),
            // An empty file has its mistake on no line at all.
            line: line.max(1),
            reason: reason.to_owned(),
        }
    }
}

/// The line, counted from 1, of a byte.
fn line_at(text: &[u8], byte: usize) -> usize {
    let before = text.iter().take(byte);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// What is wrong with JSON, without the place, which is said otherwise.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}
