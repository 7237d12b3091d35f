//! `eval --predict`: the classes of pictures.

use std::{
    iter, panic,
    path::{Path, PathBuf},
    thread,
};

use burn::tensor::{Device, Tensor, activation::softmax};
use clap::ValueEnum;
use csv::Writer;
use serde_json::{Value, json};
use stovepipe::schedule::count;
use stovepipe_imagenet::{ImagenetError, Loading, images_in};

use super::TrainedRun;
use crate::{
    error::{CliError, usage},
    models::{Classifier, ModelWork},
    output,
};

/// How predictions are printed, a line for each picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for the file, its classes and their probabilities
    Csv,
    /// A JSON object for each file
    Jsonl,
}

pub struct Predict<'a> {
    pub run: &'a TrainedRun,
    pub paths: &'a [PathBuf],
    pub view: Loading,
    /// Classes of each picture.
    pub top: usize,
    pub format: Option<Format>,
}

impl ModelWork for Predict<'_> {
    type Done = ();

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<(), CliError> {
        let (run, files) = (self.run, files(self.paths)?);
        let (classes, top) = (run.classes.len(), self.top.clamp(1, run.classes.len()));
        let pipeline = run.pipeline(layers)?;
        if self.format == Some(Format::Csv) {
            let columns =
                (1..=top).flat_map(|n| [format!("class_{n}"), format!("probability_{n}")]);
            output::print_raw(&csv_line(iter::once("file".to_owned()).chain(columns))?)?;
        }
        let (mut all, mut failed) = (Vec::new(), 0);
        for files in files.chunks(run.settings.training.batch_size) {
            let pictures = load(&self.view, files);
            let good: Vec<_> = pictures.iter().flatten().cloned().collect();
            let mut shares = Vec::new();
            if !good.is_empty() {
                let logits = pipeline.infer(Tensor::cat(good, 0))?;
                shares.extend(softmax(logits, 1).into_data().iter::<f32>());
            }
            let mut shares = shares.chunks(classes);
            for (file, picture) in files.iter().zip(pictures) {
                if let Err(error) = picture {
                    output::say(&format!("skipped: {error}\n"));
                    failed += 1;
                    continue;
                }
                let own = shares.next().unwrap_or_default().iter().copied();
                let mut ranked: Vec<_> = run.classes.iter().map(String::as_str).zip(own).collect();
                ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
                ranked.truncate(top);
                let line = match self.format {
                    None if run.json => {
                        all.push(object(file, &ranked));
                        continue;
                    }
                    None => line(file, &ranked),
                    Some(Format::Csv) => csv_row(file, &ranked)?,
                    Some(Format::Jsonl) => format!("{}\n", object(file, &ranked)),
                };
                let print = match self.format {
                    None => output::print,
                    Some(_) => output::print_raw,
                };
                if !print(&line)? {
                    return Ok(());
                }
            }
        }
        if self.format.is_none() {
            output::print_either(run.json, || json!(all), String::new)?;
        }
        let of = count(files.len(), "picture");
        match failed {
            0 => Ok(()),
            _ => Err(usage!("{failed} of {of} could not be read")),
        }
    }
}

/// The pictures of files, folders and patterns, in their order.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        let text = path.to_string_lossy();
        if path.is_dir() {
            files.extend(images_in(path)?);
        } else if path.exists() || !text.contains(['*', '?', '[']) {
            // A missing file is skipped like a damaged one.
            files.push(path.clone());
        } else {
            let found = glob::glob(&text).map_err(|error| usage!("{text}: {error}"))?;
            let before = files.len();
            files.extend(found.flatten().filter(|path| path.is_file()));
            if files.len() == before {
                return Err(usage!("no file matches {text}"));
            }
        }
    }
    Ok(files)
}

/// Loads pictures in several threads, each as a batch of one.
fn load(view: &Loading, files: &[PathBuf]) -> Vec<Result<Tensor<4>, ImagenetError>> {
    let share = files.len().div_ceil(view.threads());
    let load = |files: &[PathBuf]| -> Vec<_> {
        let pictures = files.iter().map(|file| view.load(file, &Device::flex()));
        pictures.collect()
    };
    thread::scope(|scope| {
        let parts: Vec<_> = (files.chunks(share))
            .map(|files| scope.spawn(move || load(files)))
            .collect();
        let parts = parts.into_iter().map(|part| part.join());
        let parts = parts.map(|part| part.unwrap_or_else(|reason| panic::resume_unwind(reason)));
        parts.flatten().collect()
    })
}

fn line(file: &Path, ranked: &[(&str, f32)]) -> String {
    let said = ranked
        .iter()
        .map(|(class, share)| format!("{class} {:.1} %", 100.0 * share));
    format!(
        "{}: {}\n",
        file.display(),
        said.collect::<Vec<_>>().join(", ")
    )
}

fn object(file: &Path, ranked: &[(&str, f32)]) -> Value {
    let classes = ranked
        .iter()
        .map(|(class, share)| json!({ "class": class, "probability": share }));
    json!({ "file": file, "classes": classes.collect::<Vec<_>>() })
}

fn csv_row(file: &Path, ranked: &[(&str, f32)]) -> Result<String, CliError> {
    let pairs = ranked.iter();
    let pairs = pairs.flat_map(|(class, share)| [(*class).to_owned(), share.to_string()]);
    csv_line(iter::once(file.display().to_string()).chain(pairs))
}

fn csv_line(fields: impl Iterator<Item = String>) -> Result<String, CliError> {
    let mut writer = Writer::from_writer(Vec::new());
    let written = writer.write_record(fields.collect::<Vec<_>>());
    written.map_err(|error| usage!("{error}"))?;
    let bytes = writer.into_inner().map_err(|error| usage!("{error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
