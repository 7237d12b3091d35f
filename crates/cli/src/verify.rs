//! `stovepipe verify`: checks that a pipeline changes nothing but the speed.

use std::process::ExitCode;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Device, Int, Tensor},
};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::{Batch, CrossEntropy, Flow, Layer, MeanOf, Objective},
    train::run::show_count,
    verify::{Report, Verifier},
};
use stovepipe_text::{PADDING, TextBatcher, TokenWindows};

use crate::{
    data::{AnyDataSet, Contents},
    error::CliError,
    models::{self, Classifier, LanguageModel, ModelWork, Segmenter, Sizes},
    output,
    settings::Subjects,
};

/// More would take hours and show nothing else.
const MOST: usize = 64;

/// How much is verified.
#[derive(Clone, Debug, Args)]
struct VerifyFlags {
    /// Samples of the mini-batch
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
    /// Largest number of stages
    #[arg(long, value_name = "N", default_value_t = 4)]
    stages: usize,
    /// Numbers of micro-batches
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 3, 6])]
    micro_batches: Vec<usize>,
    /// Seed of parameters and random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = VerifyFlags::augment_args(Command::new("verify"));
    let command = Subjects::new(models::to_verify()).augment(command);
    let command = output::hide(command, is_unused);
    output::with_negative_numbers(command)
        .about("Check that a pipeline changes nothing but the speed of training")
        .long_about(
            "Check that a pipeline changes nothing but the speed of training: train a small model with \
             different numbers of stages, schedules, recomputation modes and numbers of micro-batches, \
             compare the results, and print a table. The exit status is 0 if all checks hold.",
        )
}

/// Whether a flag is about the training set: nothing is augmented or held out here.
fn is_unused(arg: &Arg) -> bool {
    let is_data = arg.get_help_heading() == Some("Data");
    is_data && !["data", "data_dir", "labels"].contains(&arg.get_id().as_str())
}

/// Verifies, and prints the table.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    output::refuse_hidden(&command(), matches)?;
    let flags = VerifyFlags::from_arg_matches(matches)?;
    flags.check()?;
    let (model, data) = Subjects::new(models::to_verify()).read(None, matches)?;
    let sizes = match data.contents() {
        Contents::Images(images) => Sizes::of_images(images.image_size(), images.usual_classes()),
        Contents::Text(text) => Sizes::of_text(text.tokenizer()?),
    };
    let window = model.window();
    let report = model.build(
        &sizes,
        Verify {
            flags,
            data,
            window,
        },
    )?;
    output::print(&report.to_string());
    if !report.holds() {
        output::print("NOT ALL HOLDS\n");
        return Ok(ExitCode::FAILURE);
    }
    output::print("all holds\n");
    Ok(ExitCode::SUCCESS)
}

impl VerifyFlags {
    fn check(&self) -> Result<(), CliError> {
        let check = |flag, value: usize| {
            if (1..=MOST).contains(&value) {
                return Ok(());
            }
            let most = MOST;
            Err(CliError::Range { flag, value, most })
        };
        check("--samples", self.samples)?;
        check("--stages", self.stages)?;
        (self.micro_batches.iter()).try_for_each(|&number| check("--micro-batches", number))
    }
}

/// Verifies a model on its first samples.
struct Verify {
    flags: VerifyFlags,
    data: AnyDataSet,
    /// Tokens that a language model sees.
    window: usize,
}

impl Verify {
    fn images(&self) -> Result<(Tensor<4>, Tensor<1, Int>), CliError> {
        match self.data.contents() {
            Contents::Images(images) => images.first(self.flags.samples),
            Contents::Text(_) => Err(CliError::NotOfImages),
        }
    }

    fn run<L: Layer<Side = ()>, T: Flow>(
        &self,
        layers: Vec<L>,
        (input, target): (L::Input, T),
        objective: impl Objective<L::Output, T>,
    ) -> Result<Report, CliError> {
        let most = self.flags.stages.min(layers.len());
        let verifier = Verifier::new(layers, Batch::from((input, target)), objective)
            .stages(1..=most)
            .micro_batches(self.flags.micro_batches.iter().copied())
            .seed(self.flags.seed);
        let shown = show_count("verifying", "ways to train", verifier.cases());
        Ok(verifier.on_progress(shown).run()?)
    }
}

impl ModelWork for Verify {
    type Done = Report;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<Report, CliError> {
        let objective = CrossEntropy::new()
            .with_smoothing(0.1)
            .with_auxiliary_share(0.4);
        self.run(layers, self.images()?, objective)
    }

    /// On windows of a text, the last of which is padded.
    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<Report, CliError> {
        let Contents::Text(text) = self.data.contents() else {
            return Err(CliError::NotOfText);
        };
        let tokens = text.tokens(&text.tokenizer()?)?;
        let most = (self.flags.samples * self.window).saturating_sub(self.window / 2);
        let windows = TokenWindows::new(tokens[..most.min(tokens.len())].to_vec(), self.window)?;
        let items = (0..windows.len()).filter_map(|index| windows.get(index).ok());
        let batch = TextBatcher::default().batch(items.collect(), &Device::flex());
        self.run(layers, batch, CrossEntropy::new().ignoring(PADDING.into()))
    }

    /// The mask is where an image is brighter than it is on average.
    fn segment<L: Segmenter>(self, layers: Vec<L>) -> Result<Report, CliError> {
        let (input, _) = self.images()?;
        let target = input.clone().narrow(1, 0, 1).greater_elem(0.0).float();
        let objective = MeanOf(|y: Tensor<4>, t: Tensor<4>| (y - t).powi_scalar(2).mean());
        self.run(layers, (input, target), objective)
    }
}
