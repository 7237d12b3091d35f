//! Makes the report of a run: `cargo run -p stovepipe-report --example report -- runs/train-1`.
//!
//! It writes `report.html` to the run's folder, or to the path in the second argument.

use std::{env, error::Error, fs, path::PathBuf};

use stovepipe_report::Report;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("give the folder of a run")?;
    let page = arguments
        .next()
        .unwrap_or_else(|| folder.join("report.html"));
    fs::write(&page, Report::read(&folder)?.to_html())?;
    println!("{}", page.display());
    Ok(())
}
