//! `stovepipe report`: the page of a run, or one that compares several.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::train::RunFolder;
use stovepipe_report::{Comparison, Report};

use crate::{
    error::{CliError, usage},
    output,
};

#[derive(Clone, Debug, Args)]
struct ReportFlags {
    /// Folders that `train` wrote, of finished runs or not
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// File to write [default: report.html in the run's folder; comparison.html for several runs]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn command() -> Command {
    ReportFlags::augment_args(Command::new("report"))
        .about("Write the page of a run again, or a page that compares several")
        .long_about(None)
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = ReportFlags::from_arg_matches(matches)?;
    let runs = flags.runs.iter().map(|run| find(run));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let (page, usual) = match &runs[..] {
        [run] => (Report::read(run)?.to_html(), run.join("report.html")),
        _ => (Comparison::read(&runs)?.to_html(), "comparison.html".into()),
    };
    let out = flags.out.unwrap_or(usual);
    output::check_file(&out)?;
    output::write(&out, &page)?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of a run, which may be under way.
pub fn find(run: &Path) -> Result<PathBuf, CliError> {
    let found = RunFolder::find(run);
    found.ok_or_else(|| usage!("there is no run {}", run.display()))
}
