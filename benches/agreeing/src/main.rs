//! What it costs a step that two ranks agree on it, in µs:
//!
//! ```sh
//! cargo run --release -p stovepipe-agreeing --features mpi
//! ```

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::json;

use crate::failure::Failure;

#[path = "../../src/failure.rs"]
mod failure;
#[path = "../../src/machine.rs"]
mod machine;
mod turn;

const PAUSES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(20)];

const NOTE: &str = "\
Steps without work in two ranks: they meet with the terms of a training step, and tell each other how
it went, with what a stage reports of 8 micro-batches. A step's time is from when the later rank begins
until both are done. A turn gives the median of its steps; the table has the median over turns, ± half the
distance between quartiles. local: ranks are threads of a process; mpi: processes that mpirun starts on
this machine. pause: how long each rank sleeps before each step, as if it computed.";

#[derive(Clone, Debug, Parser, Serialize)]
#[command(about = "What it costs a step that two ranks agree on it")]
struct Flags {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Turns of each side
    #[arg(long, value_name = "N", default_value_t = 11)]
    rounds: usize,
    /// Few steps and one round, to show that the program works
    #[arg(long)]
    quick: bool,
    /// Take a turn, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    side: Option<Side>,
}

/// How ranks are connected.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Side {
    Local,
    Mpi,
}

fn main() -> Result<(), Failure> {
    let flags = Flags::parse();
    let steps = if flags.quick { 3 } else { 200 };
    match flags.side {
        Some(Side::Local) => turn::local(steps),
        Some(Side::Mpi) => turn::mpi(steps),
        None => compare(&flags),
    }
}

fn compare(flags: &Flags) -> Result<(), Failure> {
    let device = "cpu".to_owned();
    let machine = machine::HostInfo {
        device,
        ..machine::HostInfo::this()
    };
    let date = machine::date();
    let (cpu, threads, load) = (&machine.cpu, machine.threads, machine.load);
    println!("agreeing: {cpu}, {threads} threads, load {load:?}, {date}\n\n{NOTE}\n");
    let sides = ["local", "mpi"];
    let sides = &sides[..if cfg!(feature = "mpi") { 2 } else { 1 }];
    let mut found = vec![[(); PAUSES.len()].map(|()| Vec::new()); sides.len()];
    for _ in 0..if flags.quick { 1 } else { flags.rounds } {
        for (side, found) in sides.iter().zip(&mut found) {
            for (seconds, found) in run(side, flags)?.into_iter().zip(found) {
                found.push(seconds);
            }
        }
    }
    println!("ranks  pause ms       µs      ±");
    let mut rows = Vec::new();
    for (side, found) in sides.iter().zip(found) {
        for (pause, mut seconds) in PAUSES.iter().zip(found) {
            seconds.sort_by(f64::total_cmp);
            let quantile =
                |share: f64| 1e6 * seconds[(share * (seconds.len() - 1) as f64) as usize];
            let (us, spread) = (quantile(0.5), (quantile(0.75) - quantile(0.25)) / 2.0);
            let pause_ms = pause.as_millis() as u64;
            println!("{side:5}  {pause_ms:8}  {us:7.1}  {spread:5.1}");
            rows.push(json!({
                "ranks": side, "pause_ms": pause_ms, "us": us, "spread_us": spread,
                "least_us": quantile(0.0), "most_us": quantile(1.0),
            }));
        }
    }
    let command = env::args().collect::<Vec<_>>().join(" ");
    let results = json!({
        "bench": "agreeing", "date": date, "command": command, "machine": machine,
        "settings": flags, "notes": [NOTE], "rows": rows,
    });
    fs::create_dir_all(&flags.out)?;
    let path = flags.out.join("agreeing.json");
    fs::write(&path, serde_json::to_string_pretty(&results)? + "\n")?;
    println!("\nsaved in {}", path.display());
    Ok(())
}

/// A turn: the seconds of a step after each pause.
fn run(side: &str, flags: &Flags) -> Result<Vec<f64>, Failure> {
    let mut command = match side {
        "mpi" => stovepipe_comm_mpi::mpirun(2)?,
        _ => Command::new("env"),
    };
    // As root, in a container.
    for allow in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(allow, "1");
    }
    command.arg(env::current_exe()?).args(["--side", side]);
    if flags.quick {
        command.arg("--quick");
    }
    let output = command.stdout(Stdio::piped()).spawn()?.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    let seconds: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    match output.status.success() && seconds.len() == PAUSES.len() {
        true => Ok(seconds),
        false => Err(format!("{side} failed ({}); its error is above", output.status).into()),
    }
}
