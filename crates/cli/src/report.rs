//! `stovepipe report`: the page of a run, or one that compares several.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::train::RunFolder;
use stovepipe_report::{Comparison, Report};

use crate::{
    error::{CliError, usage},
    flags, output,
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
    let command = ReportFlags::augment_args(Command::new("report"));
    flags::finished(command)
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
    write(&flags.out.unwrap_or(usual), &page)?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of a run, which may be under way.
pub fn find(run: &Path) -> Result<PathBuf, CliError> {
    // A name such as `.` ends in none.
    let whole = fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
    let found = RunFolder::find(&whole).filter(|found| found.is_dir());
    found.ok_or_else(|| {
        let run = run.display();
        usage!("{run} is not the folder of a run: name one that train wrote, such as runs/train-1")
    })
}

/// Writes a page, and no other file: runs have some that could be lost.
pub fn write(out: &Path, page: &str) -> Result<(), CliError> {
    if out.extension().is_none_or(|ending| ending != "html") {
        let out = out.display();
        return Err(usage!(
            "{out} is not the name of a page: name a file that ends in .html with --out"
        ));
    }
    output::check_file(out)?;
    output::write(out, page)
}
