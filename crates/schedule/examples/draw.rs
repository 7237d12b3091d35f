//! Draws a schedule of equal stages: `cargo run --example draw -- 1f1b 4 8 > picture.svg`.

use std::{env, error::Error, time::Duration};

use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [name, stages, micro_batches] = words.as_slice() else {
        return Err("usage: draw gpipe|1f1b STAGES MICRO_BATCHES".into());
    };
    let scheduler: &dyn Scheduler = match name.as_str() {
        "gpipe" => &GPipe,
        "1f1b" => &OneForwardOneBackward,
        other => return Err(format!("no scheduler is called {other}").into()),
    };
    let schedule = scheduler.schedule(stages.parse()?, micro_batches.parse()?)?;
    let timeline = schedule.timeline(Duration::from_millis(10), Duration::from_millis(20));
    let labels: Vec<_> = (0..schedule.stages())
        .map(|s| format!("stage {s}"))
        .collect();
    println!("{}", timeline.to_svg(&labels));
    Ok(())
}
