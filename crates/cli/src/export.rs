//! `stovepipe export`: a trained model in the layout and with the names of other programs.

use std::{path::PathBuf, process::ExitCode};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use stovepipe::{
    pipeline::Layer,
    train::{Processes, save_model, weights::save_for_pytorch},
};

use crate::{
    data::Contents,
    error::{CliError, usage},
    eval::{RunFlags, TrainedRun, is_unused},
    hub_export::HubExport,
    models::{Classifier, LanguageModel, ModelWork, Sizes},
    output,
    settings::Settings,
};

#[derive(Clone, Debug, Args)]
struct ExportFlags {
    #[command(flatten)]
    run: RunFlags,
    /// Layout and names of the tensors [default: hub, for a decoder]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    to: Option<Program>,
    /// File to write, as safetensors, or for Burn as burnpack (`.bpk`); for the hub, a folder
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Add the adapter to the weights, and write a folder of the whole model
    #[arg(long)]
    merge: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// PyTorch's layout; timm's names of a vision transformer, torchgpipe's of an AmoebaNet
    #[value(name = "pytorch")]
    PyTorch,
    /// Burn's layout and the names of this program
    Burn,
    /// A folder as the Hugging Face Hub has it, for transformers; of an adapter, for peft
    Hub,
}

pub fn command() -> Command {
    let command = ExportFlags::augment_args(Command::new("export"));
    let command = Settings::augment_without_defaults(command);
    crate::flags::finished(crate::flags::hide(command, is_idle))
        .about("Write a trained model for transformers, peft, PyTorch or Burn")
        .long_about(None)
}

/// Whether a flag changes nothing in a file of weights.
fn is_idle(arg: &Arg) -> bool {
    is_unused(arg) || matches!(arg.get_help_heading(), Some("Pipeline" | "Training"))
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    crate::flags::refuse_hidden(&command(), matches)?;
    let flags = ExportFlags::from_arg_matches(matches)?;
    let run = TrainedRun::open(command(), &flags.run, (matches, &Processes::default()))?;
    let sizes = match run.settings.data.contents() {
        Contents::Images(images) => Sizes::of_images(images.image_size(), run.classes.len()),
        Contents::Text(text) => Sizes::of_text(text.tokenizer()?),
    };
    let (image, model) = (sizes.image, &run.settings.model.model);
    let usual = model.hub().map(|_| Program::Hub);
    let Some(to) = flags.to.or(usual) else {
        return Err(usage!("say with --to for which program: pytorch or burn"));
    };
    if flags.merge && (to != Program::Hub || model.hub().is_none_or(|hub| hub.lora.is_none())) {
        return Err(usage!(
            "merge is for a decoder with an adapter, and --to hub: leave it out"
        ));
    }
    // A saved file replaces what is there: a pipe or device would be gone.
    let out = match to {
        Program::Hub => flags.out.clone(),
        _ => output::replaceable(&flags.out)?,
    };
    model.build(
        &sizes,
        Export {
            run: &run,
            to,
            out,
            merge: flags.merge,
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
    merge: bool,
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
            Program::Hub => return Err(not_of_the_hub()),
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
        if self.to != Program::Hub {
            return self.write(layers);
        }
        let own = &self.run.settings.model;
        let export = HubExport {
            hub: own.model.hub().ok_or_else(not_of_the_hub)?,
            pipeline: self.run.pipeline(layers)?,
            base: own.pretrained.from.as_deref(),
            base_sum: self.run.base_sum()?,
            tokenizer: self.run.settings.data.contents(),
        };
        export.write(&self.out, self.merge)
    }
}

fn not_of_the_hub() -> CliError {
    usage!("--to hub is for decoders: use pytorch or burn")
}
