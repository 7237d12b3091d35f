//! `stovepipe compare`: where two runs begin to differ.

mod tensors;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::train::checkpoint::Checkpoints;
use stovepipe_report::{Comparison, OtherSetting, Step, first_other_step};

use self::tensors::first_other_tensor;
use crate::{
    error::CliError,
    files::MODEL,
    output::{self, Table},
    report::find,
};

#[derive(Clone, Debug, Args)]
struct CompareFlags {
    /// Folder of a run
    first: PathBuf,
    /// Folder of the other run
    second: PathBuf,
    /// Page to write, with the curves of both
    #[arg(long, value_name = "FILE", default_value = "comparison.html")]
    out: PathBuf,
}

pub fn command() -> Command {
    CompareFlags::augment_args(Command::new("compare"))
        .about("Find the first step and tensor in which two runs differ")
        .long_about(None)
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = CompareFlags::from_arg_matches(matches)?;
    output::check_file(&flags.out)?;
    let named = [&flags.first, &flags.second];
    let runs = [find(&flags.first)?, find(&flags.second)?];
    let comparison = Comparison::read(&runs)?;
    let mut text = settings(&comparison.other_settings(), named);
    text += &steps(first_other_step(&runs[0], &runs[1])?);
    text += &models(&runs)?;
    output::print(&text)?;
    output::write(&flags.out, &comparison.to_html())?;
    Ok(ExitCode::SUCCESS)
}

fn settings(others: &[OtherSetting], named: [&PathBuf; 2]) -> String {
    if others.is_empty() {
        return "settings: all the same\n".to_owned();
    }
    let mut table = Table::new("setting that differs");
    named
        .iter()
        .for_each(|run| table.column(&run.display().to_string()));
    for other in others {
        let values = other.values.iter();
        let values = values.map(|value| value.clone().unwrap_or_else(|| "–".to_owned()));
        table.row([other.name.clone()].into_iter().chain(values).collect());
    }
    table.to_string()
}

fn steps(other: Option<[Step; 2]>) -> String {
    let Some([first, second]) = other else {
        return "steps: none differs that both have\n".to_owned();
    };
    let both = |what: &str, of: fn(&Step) -> Option<f64>| {
        let (first, second) = (of(&first)?, of(&second)?);
        (first.to_bits() != second.to_bits()).then(|| format!("{what} {first} and {second}"))
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

/// Compares the checkpoints that both have, the oldest first, and the models at the end.
fn models([first, second]: &[PathBuf; 2]) -> Result<String, CliError> {
    let of_second = Checkpoints::of(second).list()?;
    let mut models = Vec::new();
    for own in Checkpoints::of(first).list()? {
        if let Some(other) = of_second.iter().find(|other| other.name() == own.name()) {
            let title = format!("checkpoint {}", own.name());
            models.push((title, own.model(false), other.model(false)));
        }
    }
    let at_end = [first, second].map(|run| run.join(MODEL));
    if at_end.iter().all(|path| path.exists()) {
        let [first, second] = at_end;
        models.push(("the model at the end".to_owned(), first, second));
    }
    let mut same = 0;
    for (title, first, second) in &models {
        let files: [&Path; 2] = [first, second];
        match first_other_tensor(files)? {
            None => same += 1,
            Some(other) => return Ok(format!("{title} is the first that differs: {other}\n")),
        }
    }
    Ok(match same {
        0 => "models: there are no checkpoints that both have\n".to_owned(),
        _ => format!("models: the same in {same} checkpoints, with that at the end\n"),
    })
}
