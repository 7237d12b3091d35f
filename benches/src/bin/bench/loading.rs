//! Loading photographs from a folder next to torchvision, on the same number of workers, in the same
//! minutes.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench loading --python PATH`

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use burn::tensor::Device;
use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::train::data::shuffled;
use stovepipe_benches::{
    Failure,
    line_process::LineProcess,
    measure::{Turn, TurnCost, TurnCosts, take_turns, time},
    report::{BenchReport, ReportTable, cell},
};
use stovepipe_imagenet::{ImageFolder, Images, IndexCache, Loading};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

/// Loading photographs next to torchvision
#[derive(Args, Serialize)]
pub struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Few images and rounds, to show that the program works
    #[arg(long)]
    quick: bool,
    /// Turns of each configuration; in each it loads all images
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// A Python that has torchvision, scikit-image and scikit-learn
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// A folder of class folders (default: one is made of photographs in the Python's packages)
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Photographs in that default folder
    #[arg(long, value_name = "N", default_value_t = 400)]
    images: usize,
    /// Images in a batch
    #[arg(long, value_name = "N", default_value_t = 32)]
    batch: usize,
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/loading.py");

const WORKERS: [usize; 2] = [1, 2];

const NOTE: &str = "\
Each configuration loads all images in random order: decodes, crops at random, resizes to 224×224 by
bilinear interpolation, mirrors half, normalises, and batches. Rates are medians over rounds in which
all took their turn; the ratio is ours over torchvision's (ImageFolder and DataLoader with Pillow)
with as many workers. The decoders' rates are those of one thread that only decodes the same files:
zune-jpeg, which is ours, and Pillow.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    let mut report = BenchReport::begin("loading", &flags)?;
    report.note(NOTE);
    let folder = flags.folder()?;
    let table = measure(&flags, &folder, &mut report)?;
    report.table(table);
    report.save(&flags.out)
}

impl Flags {
    fn images(&self) -> usize {
        if self.quick { 10 } else { self.images }
    }

    /// The given folder, or one that is made the first time.
    fn folder(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let images = self.images().to_string();
        let folder = env::temp_dir().join(format!("stovepipe-photographs-{images}"));
        if !folder.exists() {
            let partial = folder.with_extension("partial");
            let _ = fs::remove_dir_all(&partial); // of a run that was stopped
            let peer = TorchvisionLoader::start(self, &partial, &["--make", &images])?;
            if peer.hello.images == 0 {
                return Err("no photographs were made".into());
            }
            fs::rename(partial, &folder)?;
        }
        Ok(folder)
    }
}

fn measure(flags: &Flags, folder: &Path, report: &mut BenchReport) -> Result<ReportTable, Failure> {
    let files = files(folder)?;
    let images = files.len();
    let bytes: usize = files.iter().map(Vec::len).sum();
    let (mut names, mut turns) = (Vec::new(), Vec::<Turn<'_>>::new());
    for workers in WORKERS {
        names.push(("ours".to_owned(), workers));
        turns.push(ours(flags, folder, workers)?);
    }
    for workers in WORKERS {
        let (batch, number) = (flags.batch.to_string(), workers.to_string());
        let what = ["--workers", &number, "--batch", &batch];
        let mut peer = TorchvisionLoader::start(flags, folder, &what)?;
        peer.check(images)?;
        names.push((format!("torchvision {}", peer.hello.version), workers));
        turns.push(Box::new(move || peer.turn()));
    }
    names.push(("zune-jpeg".to_owned(), 1));
    turns.push(Box::new(move || decode(&files)));
    let mut peer = TorchvisionLoader::start(flags, folder, &["--decode"])?;
    peer.check(images)?;
    names.push((format!("Pillow {}", peer.hello.version), 1));
    turns.push(Box::new(move || peer.turn()));

    let (mean, folder) = (bytes / images, folder.display());
    report.note(format!(
        "{images} images with a mean of {mean} bytes, in {folder}"
    ));
    let rounds = flags.rounds.unwrap_or(if flags.quick { 1 } else { 9 });
    Ok(table(&names, &take_turns(&mut turns, rounds.max(1))?))
}

/// Each configuration with its workers, and its seconds for an image.
fn table(names: &[(String, usize)], costs: &[TurnCosts]) -> ReportTable {
    let mut table = ReportTable::new("loading: decode, crop, flip, normalise, batch");
    let (loaders, decoders) = costs.split_at(2 * WORKERS.len());
    for (index, ((name, workers), own)) in names.iter().zip(costs).enumerate() {
        let seconds = &own.seconds;
        let theirs = &loaders[WORKERS.len() + index % WORKERS.len()].seconds;
        let ratio = (index < loaders.len()).then(|| theirs.over(seconds).median());
        let share = decoders[0].seconds.over(seconds).median() / *workers as f64;
        table.row([
            cell("what", "what", 0, name.as_str()),
            cell("workers", "workers", 0, *workers),
            cell("images_per_second", "images/s", 1, 1.0 / seconds.median()),
            cell("over_torchvision", "over torchvision", 3, ratio),
            cell("of_decoder", "of zune-jpeg's rate × workers", 3, share),
            cell("spread_percent", "±%", 1, 100.0 * seconds.spread()),
        ]);
    }
    table
}

/// Our loader: an epoch each turn.
fn ours(flags: &Flags, folder: &Path, workers: usize) -> Result<Turn<'static>, Failure> {
    let loading = Loading {
        workers,
        skip: 0,
        ..Loading::default()
    };
    let images = Images::new(ImageFolder::open(folder, &IndexCache::Off)?, loading)?;
    let (device, batch) = (Device::flex(), flags.batch);
    let mut epoch = 0;
    Ok(Box::new(move || {
        epoch += 1;
        let order = shuffled(images.len(), 0, epoch);
        let (seconds, seen) = time(|| -> Result<usize, Failure> {
            let mut seen = 0;
            for batch in images.train_batches(order, batch, 0, epoch) {
                seen += batch?.into_classes(&device).1.dims()[0];
            }
            Ok(seen)
        });
        cost(seconds, seen?)
    }))
}

fn decode(files: &[Vec<u8>]) -> Result<TurnCost, Failure> {
    let mut pixels = Vec::new();
    let (seconds, decoded) = time(|| -> Result<(), Failure> {
        for file in files {
            let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
            let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file.as_slice()), options);
            decoder.decode_headers()?;
            pixels.resize(decoder.output_buffer_size().unwrap_or(0), 0);
            decoder.decode_into(&mut pixels)?;
        }
        Ok(())
    });
    decoded?;
    cost(seconds, files.len())
}

fn cost(seconds: f64, images: usize) -> Result<TurnCost, Failure> {
    Ok(TurnCost {
        seconds: seconds / images as f64,
        processor: f64::NAN, // workers come and go
    })
}

fn files(folder: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let images = ImageFolder::open(folder, &IndexCache::Off)?;
    let files = (0..images.len()).map(|image| fs::read(images.path(image)));
    Ok(files.collect::<Result<_, _>>()?)
}

/// A Python that loads all images when it is asked to.
struct TorchvisionLoader {
    process: LineProcess,
    hello: LoaderHello,
}

#[derive(Deserialize)]
struct LoaderHello {
    #[serde(default)]
    images: usize,
    #[serde(default)]
    version: String,
    #[serde(default)]
    missing: Option<String>,
}

impl TorchvisionLoader {
    fn start(flags: &Flags, folder: &Path, what: &[&str]) -> Result<Self, Failure> {
        let python = &flags.python;
        let advice = "install torchvision, scikit-image and scikit-learn (pip install), or name a \
                      Python that has them: --python PATH";
        let mut command = Command::new(python);
        // -B writes no compiled files into the sources.
        command.args(["-B", SCRIPT, "--folder"]).arg(folder);
        let mut process = LineProcess::start(command.args(what))
            .map_err(|error| format!("`{python}` cannot be run ({error}): {advice}"))?;
        let line = process.line()?;
        let hello: LoaderHello = serde_json::from_str(&line)
            .map_err(|_| format!("`{python}` failed; its error is above ({line:?})"))?;
        if let Some(missing) = &hello.missing {
            return Err(format!("`{python}` lacks a package ({missing}): {advice}").into());
        }
        Ok(Self { process, hello })
    }

    /// Fails if the process has another number of images.
    fn check(&self, images: usize) -> Result<(), Failure> {
        if self.hello.images != images {
            return Err(format!("{images} images here, {} in Python", self.hello.images).into());
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<TurnCost, Failure> {
        let answer = self.process.ask()?;
        let Ok(seconds) = answer.trim().parse::<f64>() else {
            let message = "torchvision's process failed; its error is above";
            return Err(format!("{message} ({answer:?})").into());
        };
        cost(seconds, self.hello.images)
    }
}
