//! Draws a schedule of equal stages:
//! `cargo run --release -p stovepipe-schedule --example draw -- zb-v 4 8 > picture.svg`.
//!
//! A last argument `text` prints a picture for the terminal, `trace` a trace for Perfetto.

use std::{env, error::Error};

use stovepipe_schedule::{Costs, Rule, Scheduler};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let (rule, workers, micro_batches, form) = match words.as_slice() {
        [rule, workers, micro_batches] => (rule, workers, micro_batches, "svg"),
        [rule, workers, micro_batches, form] => (rule, workers, micro_batches, form.as_str()),
        _ => return Err("usage: draw RULE WORKERS MICRO_BATCHES [svg|text|trace]".into()),
    };
    let rule: Rule = rule.parse()?;
    let stages = rule.stages(workers.parse()?);
    let schedule = rule.schedule(stages, micro_batches.parse()?)?;
    let mut costs = Costs::uniform(stages, 10e-3, 10e-3, 10e-3);
    for stage in &mut costs.stages {
        stage.update = 2e-3;
    }
    let timeline = schedule.simulate(&costs)?.timeline();
    match form {
        "text" => print!("{}", timeline.to_text(120, true)),
        "trace" => println!("{}", timeline.to_chrome_trace(&[])),
        _ => println!("{}", timeline.to_svg(&[])),
    }
    Ok(())
}
