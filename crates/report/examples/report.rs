//! Makes the page of a run: `cargo run -p stovepipe-report --example report -- runs/train-1`.
//!
//! The page is `report.html` in the run's folder, or the second argument.

use std::{env, error::Error, fs, path::PathBuf};

use stovepipe_report::Report;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("say which run's folder")?;
    let page = arguments
        .next()
        .unwrap_or_else(|| folder.join("report.html"));
    fs::write(&page, Report::read(&folder)?.to_html())?;
    println!("{}", page.display());
    Ok(())
}
