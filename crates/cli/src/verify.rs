//! `stovepipe verify`: checks that a pipeline changes nothing but the speed.

use std::process::ExitCode;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Device, Int, Tensor},
};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::{Batch, CrossEntropy, Flow, Layer, MeanOf, Objective},
    schedule::count,
    train::{Processes, run::show_count},
    verify::{Report, Verifier},
};
use stovepipe_text::{PADDING, TextBatcher, TokenWindows};

use crate::{
    data::{AnyDataSet, Contents},
    error::{CliError, usage},
    flags,
    models::{self, Classifier, LanguageModel, ModelWork, Segmenter, Sizes},
    output,
    settings::Subjects,
};

/// More would take hours and show nothing else.
const MOST: usize = 64;

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
    /// Start mpirun with this many processes on this machine, which share the stages
    #[arg(long, value_name = "N")]
    processes: Option<usize>,
}

pub fn command() -> Command {
    let command = VerifyFlags::augment_args(Command::new("verify"));
    let command = Subjects::new(models::to_verify()).augment(command);
    let command = flags::hide(command, is_unused);
    flags::finished(command)
        .about("Check that a pipeline changes nothing but the speed of training")
        .long_about(
            "Check that a pipeline changes nothing but the speed of training: train a small model with \
             different numbers of stages, schedules, recomputation modes and numbers of micro-batches, \
             compare the results, and print a table. The exit status is 0 if all checks hold. In several \
             processes, the stages lie in all of them.",
        )
}

/// Whether a flag is about the training set: nothing is augmented or held out here.
fn is_unused(arg: &Arg) -> bool {
    let is_data = arg.get_help_heading() == Some("Data");
    let used = ["data", "data_dir", "labels", "text", "tokenizer"];
    is_data && !used.contains(&arg.get_id().as_str())
}

pub fn main(matches: &ArgMatches, processes: &Processes) -> Result<ExitCode, CliError> {
    let read = || {
        flags::refuse_hidden(&command(), matches)?;
        let flags = VerifyFlags::from_arg_matches(matches)?;
        let (model, data) = Subjects::new(models::to_verify()).read(None, matches, None)?;
        let sizes = match data.contents() {
            Contents::Images(images) => {
                Sizes::of_images(images.image_size(), images.usual_classes())
            }
            Contents::Text(text) => Sizes::of_text(text.tokenizer()?),
        };
        flags.check(model.build(&sizes, CountLayers)?, processes.size())?;
        Ok((flags, model, data, sizes))
    };
    let (flags, model, data, sizes) = in_turn(processes, read)?;
    let verify = Verify {
        flags,
        data,
        window: model.window(),
        processes,
    };
    let report = model.build(&sizes, verify)?;
    let (verdict, code) = match report.holds() {
        true => ("all holds", ExitCode::SUCCESS),
        false => ("NOT ALL HOLDS", ExitCode::FAILURE),
    };
    // The others wait for it: if one of them fails, mpirun ends the first.
    processes.first(|| output::print(&format!("{report}{verdict}\n")))?;
    Ok(code)
}

/// Does something in the first process, then in the others: they often fail as it does, and one error is enough.
fn in_turn<T>(
    processes: &Processes,
    work: impl Fn() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let of_first = processes.first(&work)?;
    processes.agree(of_first.map_or_else(work, Ok))
}

impl VerifyFlags {
    fn check(&self, layers: usize, processes: usize) -> Result<(), CliError> {
        let check = |flag, value: usize| {
            if (1..=MOST).contains(&value) {
                return Ok(());
            }
            Err(usage!("{flag} is {value}: give a number from 1 to {MOST}"))
        };
        check("--samples", self.samples)?;
        check("--stages", self.stages)?;
        (self.micro_batches.iter()).try_for_each(|&number| check("--micro-batches", number))?;
        let each = format!("for {processes} processes: each needs at least one");
        if layers < processes {
            let layers = count(layers, "layer");
            return Err(usage!("{layers} {each}: start fewer processes"));
        }
        if self.stages < processes {
            let stages = count(self.stages, "stage");
            return Err(usage!("{stages} {each}: set --stages {processes}"));
        }
        Ok(())
    }
}

/// Verifies a model on its first samples.
struct Verify<'a> {
    flags: VerifyFlags,
    data: AnyDataSet,
    /// Tokens that a language model sees.
    window: usize,
    processes: &'a Processes,
}

impl Verify<'_> {
    fn images(&self) -> Result<(Tensor<4>, Tensor<1, Int>), CliError> {
        match self.data.contents() {
            Contents::Images(images) => images.first(self.flags.samples),
            Contents::Text(_) => Err(CliError::NotOfImages),
        }
    }

    fn run<L: Layer<Side = ()>, T: Flow>(
        &self,
        layers: Vec<L>,
        batch: impl Fn() -> Result<(L::Input, T), CliError>,
        objective: impl Objective<L::Output, T>,
    ) -> Result<Report, CliError> {
        let (input, target) = in_turn(self.processes, batch)?;
        let most = self.flags.stages.min(layers.len());
        let mut verifier = Verifier::new(layers, Batch::from((input, target)), objective)
            .stages(1..=most)
            .micro_batches(self.flags.micro_batches.iter().copied())
            .seed(self.flags.seed);
        if let Some(communicator) = self.processes.communicator() {
            verifier = verifier.communicator(communicator.clone());
        }
        if self.processes.is_first() {
            let shown = show_count("verifying", "way to train", verifier.cases());
            verifier = verifier.on_progress(shown);
        }
        Ok(verifier.run()?)
    }

    /// Windows of a text, the last of which is padded.
    fn windows(&self) -> Result<(Tensor<2, Int>, Tensor<2, Int>), CliError> {
        let Contents::Text(text) = self.data.contents() else {
            return Err(CliError::NotOfText);
        };
        let tokens = text.tokens(&text.tokenizer()?)?;
        let most = self.flags.samples.saturating_mul(self.window) - self.window / 2;
        let most = most.max(self.window.saturating_add(1));
        let windows = TokenWindows::new(tokens[..most.min(tokens.len())].to_vec(), self.window)?;
        let items = (0..windows.len()).filter_map(|index| windows.get(index).ok());
        Ok(TextBatcher::default().batch(items.collect(), &Device::flex()))
    }
}

impl ModelWork for Verify<'_> {
    type Done = Report;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<Report, CliError> {
        let objective = CrossEntropy::new()
            .with_smoothing(0.1)
            .with_auxiliary_share(0.4);
        self.run(layers, || self.images(), objective)
    }

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<Report, CliError> {
        let objective = CrossEntropy::new().ignoring(PADDING.into());
        self.run(layers, || self.windows(), objective)
    }

    /// The mask is where an image is brighter than it is on average.
    fn segment<L: Segmenter>(self, layers: Vec<L>) -> Result<Report, CliError> {
        let batch = || {
            let (input, _) = self.images()?;
            let target = input.clone().narrow(1, 0, 1).greater_elem(0.0).float();
            Ok((input, target))
        };
        let objective = MeanOf(|y: Tensor<4>, t: Tensor<4>| (y - t).powi_scalar(2).mean());
        self.run(layers, batch, objective)
    }
}

/// Finds how many layers a model has.
struct CountLayers;

impl ModelWork for CountLayers {
    type Done = usize;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<usize, CliError> {
        Ok(layers.len())
    }

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<usize, CliError> {
        Ok(layers.len())
    }

    fn segment<L: Segmenter>(self, layers: Vec<L>) -> Result<usize, CliError> {
        Ok(layers.len())
    }
}
