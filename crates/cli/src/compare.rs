//! `stovepipe compare`: where two runs begin to differ.

mod replay;
mod tensors;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;
use stovepipe::{
    schedule::{SpanKind, count},
    train::checkpoint::Checkpoints,
};
use stovepipe_report::{
    ComparedSteps, ComparedSums, Comparison, OtherSum, Step, first_other_step, first_other_sum,
};

use self::{
    replay::Replay,
    tensors::{Compared, compare, first_other_tensor},
};
use crate::{
    error::CliError,
    files::{CONFIG, MODEL, STEPS},
    flags,
    output::{self, Table},
    report::{self, find},
    train::INTERRUPTED,
};

/// Stands for a value that a run does not have.
const NONE: &str = "–";

#[derive(Clone, Debug, Args)]
struct CompareFlags {
    /// Folder of a run
    first: PathBuf,
    /// Folder of the other run
    second: PathBuf,
    /// Train both again from the last checkpoint that is the same, to name the micro-batch and the pass that differ
    #[arg(long)]
    replay: bool,
    /// Page to write, with the curves of both; it ends in .html
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn command() -> Command {
    let command = CompareFlags::augment_args(Command::new("compare"));
    flags::finished(command)
        .about("Find the first step and tensor in which two runs differ")
        .long_about(None)
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = CompareFlags::from_arg_matches(matches)?;
    let named = [&flags.first, &flags.second];
    let runs = [find(&flags.first)?, find(&flags.second)?];
    let comparison = Comparison::read(&runs)?;
    let mut text = settings(&comparison, named);
    let layers = layer_names(&comparison);
    let compared = first_other_step(&runs[0], &runs[1])?;
    text += &steps(&compared);
    let sums = first_other_sum([&runs[0], &runs[1]])?;
    text += &checksums(&sums, &layers);
    output::print(&text)?;
    let models = models(&runs)?;
    output::print(&models.text)?;
    if flags.replay {
        let first = (compared.other.map(|[step, _]| step.step).into_iter())
            .chain(sums.other.map(|(step, _)| step))
            .chain(models.step)
            .min();
        let (runs, layers) = (&runs, &layers);
        let replay = Replay {
            named,
            runs,
            layers,
        };
        let replayed = match first {
            Some(step) => replay.until(step)?,
            None => Some("replay: both are the same: there is nothing to find\n".to_owned()),
        };
        let Some(text) = replayed else {
            return Ok(ExitCode::from(INTERRUPTED));
        };
        output::print(&text)?;
    }
    if let Some(out) = &flags.out {
        report::write(out, &comparison.to_html())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(comparison: &Comparison, named: [&PathBuf; 2]) -> String {
    for (run, name) in comparison.runs.iter().zip(named) {
        if run.settings.tables.is_empty() {
            return format!("settings: {} has none in {CONFIG}\n", name.display());
        }
    }
    let others = comparison.other_settings();
    if others.is_empty() {
        return "settings: all the same\n".to_owned();
    }
    let mut table = Table::new("setting that differs");
    named
        .iter()
        .for_each(|run| table.column(&run.display().to_string()));
    for other in &others {
        let values = other.values.iter();
        let values = values.map(|value| value.clone().unwrap_or_else(|| NONE.to_owned()));
        table.row([other.name.clone()].into_iter().chain(values).collect());
    }
    table.to_string()
}

fn steps(compared: &ComparedSteps) -> String {
    let Some([first, second]) = &compared.other else {
        return match compared.same {
            0 => "steps: there are none that both have\n".to_owned(),
            same => format!("steps: the same in {}\n", count(same, "step")),
        };
    };
    let both = |what: &str, of: fn(&Step) -> Option<f64>| {
        let shown = |step| of(step).map_or(NONE.to_owned(), |number: f64| number.to_string());
        let bits = |step| of(step).map(f64::to_bits);
        (bits(first) != bits(second))
            .then(|| format!("{what} {} and {}", shown(first), shown(second)))
    };
    let parts = [
        both("loss", |step| Some(step.loss)),
        both("learning rate", |step| Some(step.learning_rate)),
        both("gradient norm", |step| step.gradient_norm),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let (step, epoch) = (first.step, first.epoch);
    format!(
        "step {step}, in epoch {epoch}, is the first that differs: {}\n",
        parts.join(", ")
    )
}

/// The names of the model's layers, as the first run that is over has them.
fn layer_names(comparison: &Comparison) -> Vec<String> {
    let mut summaries = comparison
        .runs
        .iter()
        .filter_map(|run| run.summary.as_ref());
    let stages = summaries.next().map(|summary| &summary.stages);
    let layers = stages.into_iter().flatten().flat_map(|stage| &stage.layers);
    layers.cloned().collect()
}

fn checksums(compared: &ComparedSums, layers: &[String]) -> String {
    match (&compared.other, compared.same) {
        (Some((step, other)), _) => format!(
            "checksums: step {step} is the first that differs: {}\n",
            place(other, layers)
        ),
        (None, 0) => String::new(),
        (None, same) => format!("checksums: the same in {}\n", count(same, "step")),
    }
}

/// Says what two runs have computed differently.
fn place(other: &OtherSum, layers: &[String]) -> String {
    let named = |layer: &usize| match layers.get(*layer) {
        Some(name) => format!("layer {layer} ({name})"),
        None => format!("layer {layer}"),
    };
    match other {
        OtherSum::Sizes => "the number of layers or micro-batches".to_owned(),
        OtherSum::Pass {
            micro_batch,
            kind,
            layer,
            micro_batches,
            after_loss,
        } => {
            let what = match kind {
                SpanKind::Forward => "the forward pass",
                SpanKind::Recompute => "the recomputation",
                SpanKind::InputGradient => "the backward pass (gradient of the input)",
                SpanKind::WeightGradient => "the backward pass (gradients of the weights)",
                _ => "the backward pass",
            };
            let more = match micro_batches {
                1 => "and of no other micro-batch".to_owned(),
                all => format!("one of {all} micro-batches that differ"),
            };
            let loss = match after_loss {
                true => "; the loss differs before it: the targets may be others",
                false => "",
            };
            let layer = named(layer);
            format!("{what} of micro-batch {micro_batch} in {layer}, {more}{loss}")
        }
        OtherSum::Loss => "the loss".to_owned(),
        OtherSum::Update => "only one run updated its parameters".to_owned(),
        OtherSum::Gradients(layer) => {
            let layer = named(layer);
            format!("the gradients of {layer}, not those of later layers, nor the loss")
        }
        OtherSum::Parameters(layer) => {
            let layer = named(layer);
            format!("the parameters of {layer} after the update, not the gradients")
        }
        _ => "something else".to_owned(),
    }
}

/// What comparing checkpoints and models has shown.
struct ComparedModels {
    text: String,
    /// The step after which the first checkpoint was made that differs.
    step: Option<usize>,
}

/// Compares the checkpoints that both have, the oldest first, and the models at the end.
fn models([first, second]: &[PathBuf; 2]) -> Result<ComparedModels, CliError> {
    let of_second = Checkpoints::of(second).list()?;
    let other = |title: &str, step, tensor: String| ComparedModels {
        text: format!("{title} is the first that differs: {tensor}\n"),
        step,
    };
    let (mut same, mut missing) = (0, 0);
    for own in Checkpoints::of(first).list()? {
        let Some(of_second) = of_second.iter().find(|other| other.name() == own.name()) else {
            continue;
        };
        match compare([&own, of_second])? {
            Compared::Same => same += 1,
            Compared::NotWhole => missing += 1,
            Compared::Other(tensor) => {
                let step = own.steps().ok().and_then(|step| usize::try_from(step).ok());
                let title = format!("checkpoint {}", own.name());
                return Ok(other(&title, step, tensor));
            }
        }
    }
    let at_end = [first, second].map(|run| [run.join(MODEL)]);
    let steps = [first, second].map(|run| last_step(run));
    let end = match (at_end.iter().flatten().all(|path| path.exists()), steps) {
        (false, _) => "; there are not two at the end".to_owned(),
        (true, [Some(one), Some(other)]) if one != other => {
            format!("; one run ended after step {one}, the other after step {other}")
        }
        (true, [step, _]) => {
            if let Some(tensor) = first_other_tensor([&at_end[0], &at_end[1]])? {
                return Ok(other("the model at the end", step, tensor));
            }
            " and at the end".to_owned()
        }
    };
    let checkpoints = count(same, "checkpoint");
    let left_out = match missing {
        0 => String::new(),
        some => format!(
            " ({} without all files left out)",
            count(some, "checkpoint")
        ),
    };
    let text = format!("models: the same in {checkpoints}{end}{left_out}\n");
    Ok(ComparedModels { text, step: None })
}

/// The last step in a run's log.
fn last_step(run: &Path) -> Option<usize> {
    let steps = fs::read_to_string(run.join(STEPS)).ok()?;
    let last: Value = serde_json::from_str(steps.lines().last()?).ok()?;
    usize::try_from(last["step"].as_u64()?).ok()
}
