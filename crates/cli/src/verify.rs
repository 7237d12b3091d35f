//! `stovepipe verify`: shows that a pipeline changes nothing but the speed.

use std::process::ExitCode;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Device, Int, Tensor},
};
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use stovepipe::{
    pipeline::{Batch, CrossEntropy, Flow, Layer, MeanOf, Objective},
    train::run::show_count,
    verify::{Report, Verifier},
};
use stovepipe_amoebanet::{AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_cifar::CifarBatcher;
use stovepipe_digits::{DigitBatcher, Digits};
use stovepipe_text::{PADDING, Text, TextBatcher, TokenWindows, Tokenizer};
use stovepipe_transformer::{LmConfig, VitConfig};
use stovepipe_unet::UNetConfig;

use crate::{
    data::{DataName, DataSettings},
    error::CliError,
    output,
};

/// More would take hours and show nothing else.
const MOST: usize = 64;

/// What is verified, and in how many ways.
#[derive(Clone, Debug, Args)]
struct VerifySettings {
    /// Model
    #[arg(long, value_enum, default_value_t = ModelName::AmoebaNetD)]
    model: ModelName,
    /// AmoebaNet's L, divisible by 3, U-Net's B, or a Transformer's blocks [default: 3, 1, or 2]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// AmoebaNet's D, divisible by 4, or U-Net's C [default: 8 or 4]
    #[arg(long, value_name = "N")]
    filters: Option<usize>,
    /// A Transformer's width, divisible by 4 [default: 16]
    #[arg(long, value_name = "D")]
    width: Option<usize>,
    /// Whether AmoebaNet has an auxiliary head [default: true]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    auxiliary: Option<bool>,
    /// Probability with which AmoebaNet's operations, U-Net's channels, or a Transformer's values are dropped
    #[arg(long, value_name = "P", default_value_t = 0.2)]
    drop_path: f64,
    /// Samples of the mini-batch
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
    /// Stages at most
    #[arg(long, value_name = "K", default_value_t = 4)]
    stages: usize,
    /// Numbers of micro-batches
    #[arg(long, value_name = "M,…", value_delimiter = ',', default_values_t = [1, 3, 6])]
    micro_batches: Vec<usize>,
    /// Seed of the parameters and of what is drawn
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Read by themselves: they have defaults of their own.
    #[clap(skip)]
    data: DataSettings,
}

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelName {
    /// AmoebaNet-D(L, D)
    #[value(name = "amoebanet-d")]
    AmoebaNetD,
    /// AmoebaNet-B(L, D)
    #[value(name = "amoebanet-b")]
    AmoebaNetB,
    /// U-Net(B, C), with long skips
    #[value(name = "unet")]
    UNet,
    /// Vision transformer
    Vit,
    /// Language model of Transformer blocks, its softmax tied to its embedding
    TransformerLm,
}

/// Heads of a Transformer's attention, and tokens that its language model sees.
const HEADS: usize = 4;
const LENGTH: usize = 12;

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = VerifySettings::augment_args(Command::new("verify"));
    let command = DataSettings::augment_args(command);
    // The settings' own documentation would be the text otherwise.
    let command = command.about("Show that a pipeline changes nothing but the speed of training");
    output::with_negative_numbers(command).long_about(
        "Show that a pipeline changes nothing but the speed of training: train a small model under \
         many numbers of stages, schedules, modes of recomputation and numbers of micro-batches, \
         compare what comes out, and print a table. The exit status is 0 if all holds.",
    )
}

/// Verifies, and prints the table.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let mut settings = VerifySettings::from_arg_matches(matches)?;
    settings.data.update_from_arg_matches(matches)?;
    settings.check()?;
    settings.data.settle()?;
    let report = match settings.model {
        ModelName::AmoebaNetD | ModelName::AmoebaNetB | ModelName::Vit => settings.classify()?,
        ModelName::UNet => settings.segment()?,
        ModelName::TransformerLm => settings.read()?,
    };
    output::print(&report.to_string());
    let verdict = match report.holds() {
        true => "all holds\n",
        false => "NOT ALL HOLDS\n",
    };
    output::print(verdict);
    Ok(match report.holds() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl VerifySettings {
    fn check(&self) -> Result<(), CliError> {
        let check = |flag, value: usize| match (1..=MOST).contains(&value) {
            true => Ok(()),
            false => Err(CliError::Range {
                flag,
                value,
                most: MOST,
            }),
        };
        let foreign = |setting, of: &'static str, other: &str| CliError::NotOfData {
            setting,
            of,
            data: other.to_owned(),
        };
        let name = self.model.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        let is_amoebanet = matches!(self.model, ModelName::AmoebaNetD | ModelName::AmoebaNetB);
        if self.auxiliary.is_some() && !is_amoebanet {
            return Err(foreign("auxiliary", "AmoebaNet", name));
        }
        let is_transformer = matches!(self.model, ModelName::Vit | ModelName::TransformerLm);
        if self.width.is_some() && !is_transformer {
            return Err(foreign("width", "vit and transformer-lm", name));
        }
        if self.filters.is_some() && is_transformer {
            return Err(foreign("filters", "AmoebaNet and unet", name));
        }
        let is_default = self.data == DataSettings::default();
        if self.model == ModelName::TransformerLm && !is_default {
            return Err(foreign("data", "models of images", name));
        }
        if let Some(setting) = self.data.beyond_the_data() {
            return Err(foreign(setting, "training", "verify"));
        }
        check("--samples", self.samples)?;
        check("--stages", self.stages)?;
        (self.micro_batches.iter()).try_for_each(|&number| check("--micro-batches", number))
    }

    /// The first images of the training set, with their labels.
    fn images(&self) -> Result<(Tensor<4>, Tensor<1, Int>), CliError> {
        match (self.data.data, self.data.cifar_labels()) {
            (_, Some(labels)) => {
                let images = self.data.cifar_images(labels)?;
                Ok(self.first(&images, &CifarBatcher::default()))
            }
            (DataName::Digits, _) => Ok(self.first(&Digits::train()?, &DigitBatcher)),
            _ => Err(CliError::NotVerified {
                data: self.data.name(),
            }),
        }
    }

    fn first<I>(
        &self,
        set: &impl Dataset<I>,
        batcher: &impl Batcher<I, (Tensor<4>, Tensor<1, Int>)>,
    ) -> (Tensor<4>, Tensor<1, Int>) {
        let items = (0..self.samples).filter_map(|index| set.get(index).ok());
        batcher.batch(items.collect(), &Device::flex())
    }

    fn classify(&self) -> Result<Report, CliError> {
        let (classes, device) = (self.data.usual_classes(), Device::flex());
        let (images, labels) = self.images()?;
        let (cells, filters) = (self.layers.unwrap_or(3), self.filters.unwrap_or(8));
        let auxiliary = self.auxiliary.unwrap_or(true);
        match self.model {
            ModelName::Vit => {
                let (layers, width) = (self.layers.unwrap_or(2), self.width.unwrap_or(16));
                let layers = VitConfig::new(32, 8, layers, width, HEADS, classes)
                    .with_dropout(self.drop_path)
                    .with_attention_dropout(self.drop_path)
                    .with_drop_path(self.drop_path)
                    .init(&device)?;
                self.verify_classes(layers, images, labels)
            }
            ModelName::AmoebaNetB => {
                let layers = AmoebaNetBConfig::new(cells, filters, classes)
                    .with_stem(Stem::Small)
                    .with_auxiliary(auxiliary)
                    .with_drop_path(self.drop_path)
                    .init(&device)?;
                self.verify_classes(layers, images, labels)
            }
            _ => {
                let layers = AmoebaNetDConfig::new(cells, filters, classes)
                    .with_stem(Stem::Small)
                    .with_auxiliary(auxiliary)
                    .with_drop_path(self.drop_path)
                    .init(&device)?;
                self.verify_classes(layers, images, labels)
            }
        }
    }

    fn verify_classes<L>(
        &self,
        layers: Vec<L>,
        input: Tensor<4>,
        target: Tensor<1, Int>,
    ) -> Result<Report, CliError>
    where
        L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>,
    {
        let objective = CrossEntropy::new()
            .with_smoothing(0.1)
            .with_auxiliary_share(0.4);
        let side = ();
        let batch = Batch::from((input, target, side));
        self.verify(layers, batch, objective)
    }

    /// Windows of a text, the last of which is padded.
    fn read(&self) -> Result<Report, CliError> {
        let (layers, width) = (self.layers.unwrap_or(2), self.width.unwrap_or(16));
        let (tokenizer, text) = (Tokenizer::bytes(), Text::embedded()?);
        let tokens = text.encode(&tokenizer)?;
        let most = (self.samples * LENGTH).saturating_sub(LENGTH / 2);
        let windows = TokenWindows::new(tokens[..most.min(tokens.len())].to_vec(), LENGTH)?;
        let items = (0..windows.len()).filter_map(|index| windows.get(index).ok());
        let (input, target) = TextBatcher::default().batch(items.collect(), &Device::flex());
        let layers = LmConfig::new(tokenizer.vocabulary(), LENGTH, layers, width, HEADS)
            .with_dropout(self.drop_path)
            .init(&Device::flex())?;
        let side = ();
        let batch = Batch::from((input, target, side));
        let objective = CrossEntropy::new().ignoring(PADDING.into());
        self.verify(layers, batch, objective)
    }

    /// Where an image is brighter than it is on average.
    fn segment(&self) -> Result<Report, CliError> {
        let (input, _) = self.images()?;
        let (convs, channels) = (self.layers.unwrap_or(1), self.filters.unwrap_or(4));
        let layers = UNetConfig::new(convs, channels)
            .with_depth(3)
            .with_dropout(self.drop_path)
            .init(&Device::flex())?;
        let target = input.clone().narrow(1, 0, 1).greater_elem(0.0).float();
        let objective = MeanOf(|y: Tensor<4>, t: Tensor<4>| (y - t).powi_scalar(2).mean());
        let side = ();
        self.verify(layers, Batch::from((input, target, side)), objective)
    }

    fn verify<L, T, O>(
        &self,
        layers: Vec<L>,
        batch: Batch<L::Input, T, L::Side>,
        objective: O,
    ) -> Result<Report, CliError>
    where
        L: Layer,
        T: Flow,
        O: Objective<L::Output, T>,
    {
        let most = self.stages.min(layers.len());
        let verifier = Verifier::new(layers, batch, objective)
            .stages(1..=most)
            .micro_batches(self.micro_batches.iter().copied())
            .seed(self.seed);
        let shown = show_count("verifying", "ways to train", verifier.cases());
        Ok(verifier.on_progress(shown).run()?)
    }
}
