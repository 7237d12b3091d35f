//! `stovepipe export`: a trained model in the layout and with the names of other programs.

use std::{path::PathBuf, process::ExitCode};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use stovepipe::{
    pipeline::Layer,
    train::{Processes, save_model, weights::save_for_pytorch},
};

use crate::{
    data::Contents,
    error::CliError,
    eval::{RunFlags, TrainedRun, is_unused},
    models::{Classifier, LanguageModel, ModelWork, Sizes},
    output,
    settings::Settings,
};

#[derive(Clone, Debug, Args)]
struct ExportFlags {
    #[command(flatten)]
    run: RunFlags,
    /// Layout and names of the tensors
    #[arg(long, value_enum, value_name = "PROGRAM")]
    to: Program,
    /// File to write, as safetensors
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// PyTorch's layout; timm's names of a vision transformer, torchgpipe's of an AmoebaNet
    #[value(name = "pytorch")]
    PyTorch,
    /// Burn's layout and the names of this program
    Burn,
}

pub fn command() -> Command {
    let command = ExportFlags::augment_args(Command::new("export"));
    let command = Settings::augment_without_defaults(command);
    crate::flags::finished(crate::flags::hide(command, is_idle))
        .about("Write a trained model for PyTorch, timm, torchgpipe or Burn")
        .long_about(None)
}

/// Whether a flag changes nothing in a file of weights.
fn is_idle(arg: &Arg) -> bool {
    is_unused(arg) || matches!(arg.get_help_heading(), Some("Pipeline" | "Training"))
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    crate::flags::refuse_hidden(&command(), matches)?;
    let flags = ExportFlags::from_arg_matches(matches)?;
    // A saved file replaces what is there: a pipe or device would be gone.
    let out = output::replaceable(&flags.out)?;
    let run = TrainedRun::open(command(), &flags.run, (matches, &Processes::default()))?;
    let sizes = match run.settings.data.contents() {
        Contents::Images(images) => Sizes::of_images(images.image_size(), run.classes.len()),
        Contents::Text(text) => Sizes::of_text(text.tokenizer()?),
    };
    let (image, model) = (sizes.image, &run.settings.model.model);
    model.build(
        &sizes,
        Export {
            run: &run,
            to: flags.to,
            out,
            image,
        },
    )?;
    output::say(&format!("wrote {}\n", flags.out.display()));
    Ok(ExitCode::SUCCESS)
}

struct Export<'a> {
    run: &'a TrainedRun,
    to: Program,
    out: PathBuf,
    image: usize,
}

impl Export<'_> {
    fn write<L: Layer<Side = ()>>(&self, layers: Vec<L>) -> Result<(), CliError> {
        let (pipeline, out) = (self.run.pipeline(layers)?, &self.out);
        let model = &self.run.settings.model.model;
        match self.to {
            Program::Burn => save_model(&pipeline, out.clone())?,
            Program::PyTorch => save_for_pytorch(&pipeline, out, |tensors| {
                model.name_elsewhere(self.image, tensors);
            })?,
        }
        Ok(())
    }
}

impl ModelWork for Export<'_> {
    type Done = ();

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<(), CliError> {
        self.write(layers)
    }

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<(), CliError> {
        self.write(layers)
    }
}
