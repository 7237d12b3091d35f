//! Why the program fails.

use std::{error::Error as StdError, io, path::PathBuf};

use stovepipe::{
    pipeline::{BuildError, StepError, device::DeviceError},
    plan::{PartitionError, PlanError},
    schedule::{CostError, Rule, ScheduleError, UnknownRule, format_bytes},
    train::TrainError,
};
use stovepipe_amoebanet::AmoebaNetError;
use stovepipe_cifar::CifarError;
use stovepipe_digits::DigitsError;
use stovepipe_imagenet::ImagenetError;
use stovepipe_report::ReportError;
use stovepipe_text::TextError;
use stovepipe_transformer::TransformerError;
use stovepipe_unet::UNetError;
use thiserror::Error;

/// Any error of another crate.
pub type Source = Box<dyn StdError + Send + Sync>;

/// Why the program fails. The source of an error is not part of its text: `main` prints both.
#[derive(Debug, Error)]
pub enum CliError {
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Model(#[from] AmoebaNetError),
    #[error(transparent)]
    Digits(#[from] DigitsError),
    #[error(transparent)]
    Cifar(#[from] CifarError),
    #[error(transparent)]
    Images(#[from] ImagenetError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Transformer(#[from] TransformerError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Report(#[from] ReportError),

    // settings
    #[error("{}: line {line}: {problem}", path.display())]
    Config {
        path: PathBuf,
        line: usize,
        problem: String,
    },
    #[error("{source}{tip}")]
    Device { source: DeviceError, tip: String },
    #[error("{data} needs --data-dir: {what}")]
    NoDataFolder {
        data: &'static str,
        what: &'static str,
    },
    #[error("{setting} is for {of}, not for {named}: leave it out")]
    Foreign {
        setting: String,
        of: String,
        named: &'static str,
    },
    #[error("{} has {setting}, which is for {of}, not for {named}: remove it there", path.display())]
    ForeignKey {
        path: PathBuf,
        setting: String,
        of: String,
        named: &'static str,
    },
    #[error("{model} does not learn from {data}: it learns from {fitting}")]
    OtherData {
        model: &'static str,
        data: &'static str,
        fitting: String,
    },
    #[error("a language model is of no use here: name a model of images with --model")]
    NotOfText,
    #[error("a model of images is of no use here: name a language model with --model")]
    NotOfImages,
    #[error("this model can be verified, but not trained here")]
    NotTrained,
    #[error("val-share has no use: the images to test with have a folder of their own, {}", test.display())]
    NothingHeldOut { test: PathBuf },

    // train
    #[error(
        "{} was started with other settings of the {what}: resume with those, or start another run with another --out",
        folder.display()
    )]
    OtherRun { folder: PathBuf, what: &'static str },
    #[error(
        "all checkpoints in {} are damaged and were moved aside: run the same command again to start over",
        .0.display()
    )]
    AllDamaged(PathBuf),
    #[error(
        "measuring {layer} takes about {} of memory, but only {} are free: give it fewer parameters, or free some memory",
        format_bytes(*needs),
        format_bytes(*has)
    )]
    Unmeasurable { layer: String, needs: u64, has: u64 },
    #[error("no device can be used, so no machine file was written")]
    NoDevices,

    // simulate
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error("{flag} is needed: a schedule by name works for any number")]
    Needed { flag: &'static str },
    #[error("{source}, or a CSV file that exists{tip}")]
    NoSchedule { source: UnknownRule, tip: String },
    #[error("{flag} is {asked}, but {} is for {own}: leave it out", path.display())]
    OtherSize {
        path: PathBuf,
        flag: &'static str,
        asked: usize,
        own: usize,
    },
    #[error(
        "{flag} has {values} numbers: give one for all workers, or one for each of {stages} stages"
    )]
    PerStage {
        flag: &'static str,
        values: usize,
        stages: usize,
    },
    #[error("{rule} has no replicas: --replicas is for {}", with_replicas())]
    NoReplicas { rule: Rule },

    #[error(
        "{stages} stages with {micro_batches} micro-batches are too many to simulate: take fewer of --stages, --chunks or --micro-batches"
    )]
    TooMany { stages: usize, micro_batches: usize },

    // plan
    #[error("{workers} workers are more than the {most} that can be planned for")]
    TooManyWorkers { workers: usize, most: usize },
    #[error(
        "{flag} is not for a graph.txt, whose stages are chosen by PipeDream's rule: leave it out"
    )]
    NotForGraph { flag: &'static str },
    #[error(
        "{rule} does not give the result of one device and is planned from a graph.txt alone: name other schedules"
    )]
    Asynchronous { rule: Rule },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Partition(#[from] PartitionError),
    #[error("--levels join {joined} devices, but there are {workers} workers")]
    Levels { joined: usize, workers: usize },
    #[error("{devices} devices for {workers} workers: name one for all, or one for each")]
    DeviceCount { devices: usize, workers: usize },
    #[error("{given} bandwidths for {levels} levels: give one for all, or one for each")]
    Bandwidths { given: usize, levels: usize },
    #[error("{what} is {value}, which is out of range")]
    Number { what: &'static str, value: f64 },
    #[error(
        "the plan has replicas of stages, which the engine does not run yet: plan without --replicas"
    )]
    ReplicasInPlan,
    #[error("a plan from a graph.txt is not for a model that can be trained here: leave --out out")]
    GraphOut,

    // eval
    #[error("{} is not a run: it has no config.toml", .0.display())]
    NoRun(PathBuf),
    #[error("--{flag} is for training, not for {subcommand}: leave it out")]
    NotUsed { flag: String, subcommand: String },
    #[error("--all is for texts; of {data}, only what training does not see is tested")]
    NotWhole { data: &'static str },
    #[error("eval needs {} for the names of the classes", path.display())]
    NoClasses { path: PathBuf, source: io::Error },
    #[error("{} names no class", .0.display())]
    EmptyClasses(PathBuf),
    #[error(
        "{} has a vocabulary of {found} tokens, but the run's own tokenizer one of {own}: \
         the model was not made for its tokens, so leave --tokenizer out",
        path.display()
    )]
    OtherTokenizer {
        path: PathBuf,
        found: usize,
        own: usize,
    },
    #[error("{flag} is for models of {what}; this one is {model}")]
    OtherModel {
        flag: &'static str,
        what: &'static str,
        model: &'static str,
    },
    #[error(
        "the model was trained on {expected} classes, the first of them {first}, but the data have {found}: \
         use the data set that it was trained on, or one with the same classes"
    )]
    OtherClasses {
        expected: usize,
        first: String,
        found: usize,
    },
    #[error("{} has no averaged weights: train with --ema", .0.display())]
    NoAverage(PathBuf),
    #[error("{} has no checkpoint {name}: it has {there}{tip}", run.display())]
    NoCheckpoint {
        run: PathBuf,
        name: String,
        there: String,
        tip: String,
    },
    #[error(transparent)]
    Generate(#[from] stovepipe_transformer::GenerationError),

    // verify
    #[error("verify takes its images from digits, cifar10 or cifar100, not from {data}")]
    NotVerified { data: &'static str },
    #[error(transparent)]
    UNet(#[from] UNetError),
    #[error("{flag} is {value}: give a number from 1 to {most}")]
    Range {
        flag: &'static str,
        value: usize,
        most: usize,
    },

    // files
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}", path.display())]
    Read { path: PathBuf, source: Source },
    #[error("{}", path.display())]
    Write { path: PathBuf, source: Source },

    #[error("could not watch for Ctrl-C")]
    Signal(#[from] ctrlc::Error),
}

fn with_replicas() -> String {
    let rules = Rule::ALL.into_iter().filter(|rule| rule.takes_replicas());
    rules.map(Rule::name).collect::<Vec<_>>().join(" and ")
}
