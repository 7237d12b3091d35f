//! What ends the program with an error.

use std::{io, path::PathBuf};

use stovepipe::{
    pipeline::{BuildError, StepError},
    plan::{PartitionError, PlanError},
    schedule::{CostError, Rule, ScheduleError, format_bytes},
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

/// What ends the program with an error.
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
    #[error("{data} needs --data-dir: {what}")]
    NoDataFolder { data: String, what: &'static str },
    #[error("{setting} is for {of}, not for {model}: leave it out")]
    NotOfModel {
        setting: &'static str,
        of: &'static str,
        model: String,
    },
    #[error(
        "{model} does not learn from {data}: images are for amoebanet-d, amoebanet-b and vit, text is for transformer-lm"
    )]
    OtherData { model: String, data: String },
    #[error("val-share has no use: the images to test with have a folder of their own, {}", test.display())]
    NothingHeldOut { test: PathBuf },
    #[error("{setting} is for {of}, not for {data}: leave it out")]
    NotOfData {
        setting: &'static str,
        of: &'static str,
        data: String,
    },
    #[error(
        "{} was begun with other settings of the {what}: go on with those, or begin another run with another --out",
        folder.display()
    )]
    OtherRun { folder: PathBuf, what: &'static str },
    #[error(
        "all checkpoints in {} are damaged and put aside: say the same once more to begin again",
        .0.display()
    )]
    AllDamaged(PathBuf),
    /// Like those above, of what no flag said.
    #[error("{} has {setting}, which is for {of}, not for {named}: take it out there", path.display())]
    Configured {
        path: PathBuf,
        setting: &'static str,
        of: &'static str,
        named: String,
    },
    #[error(
        "to measure {layer} takes about {} and there are {}: give it fewer parameters, or measure where there is more",
        format_bytes(*needs),
        format_bytes(*has)
    )]
    Unmeasurable { layer: String, needs: u64, has: u64 },
    #[error("none of the devices can be used, so there is no machine to write down")]
    NoDevices,
    // simulate
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error("{flag} is needed: a schedule by name is made for any number")]
    Needed { flag: &'static str },
    #[error("{unknown}, or a CSV file that exists")]
    NoSchedule { unknown: String },
    #[error("{}: {source}", path.display())]
    ScheduleFile {
        path: PathBuf,
        source: ScheduleError,
    },
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
        "the plan shares stages among workers, which the engine does not run yet: plan without --replicas"
    )]
    ReplicasInPlan,
    #[error("a plan from a graph.txt is of no model that can be trained here: leave --out out")]
    GraphOut,

    // eval
    #[error("{} is no run: it has no config.toml", .0.display())]
    NoRun(PathBuf),
    #[error("{flag} is for training, not for eval: leave it out")]
    NotOfEval { flag: String },
    #[error("--all is for texts; of {data}, only what training does not see is tested")]
    NotWhole { data: String },
    #[error("{}: {source}: eval needs it for the names of the classes", path.display())]
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
        model: String,
    },
    #[error(
        "the model was trained on {expected} classes, from {first} on, but the data have {found}: \
         name the data set that it was trained on, or one with the same classes"
    )]
    OtherClasses {
        expected: usize,
        first: String,
        found: usize,
    },
    #[error("{} has no averaged weights: train with --ema", .0.display())]
    NoAverage(PathBuf),
    #[error("{} has no checkpoint {name}: it has {}", run.display(), listed(there))]
    NoCheckpoint {
        run: PathBuf,
        name: String,
        there: Vec<String>,
    },
    #[error(transparent)]
    GoOn(#[from] stovepipe_transformer::TextError),

    // verify
    #[error("verify takes its images from digits, cifar10 or cifar100, not from {data}")]
    NotVerified { data: String },
    #[error(transparent)]
    UNet(#[from] UNetError),
    #[error("{flag} is {value}: give a number from 1 to {most}")]
    Range {
        flag: &'static str,
        value: usize,
        most: usize,
    },

    // files
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },

    #[error("could not watch for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}

/// Names as a sentence has them.
fn listed(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

fn with_replicas() -> String {
    let rules = Rule::ALL.into_iter().filter(|rule| rule.takes_replicas());
    rules.map(Rule::name).collect::<Vec<_>>().join(" and ")
}
