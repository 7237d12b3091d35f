//! `stovepipe simulate`: what a schedule would cost.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};
use stovepipe::schedule::{
    Costs, Link, Recompute, Rule, RuleOptions, Schedule, Scheduler, Simulation, StageCosts,
    StageMemory, Timeline, UnknownRule, format_bytes,
};

use crate::{
    error::CliError,
    output::{self, Table},
    suggest,
};

/// Workers that the table shows.
const SHOWN: usize = 32;
/// In seconds. Times are given in milliseconds.
const MILLISECOND: f64 = 1e-3;

/// What to simulate.
#[derive(Clone, Debug, Args)]
struct SimulateFlags {
    /// gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, pipedream, or a CSV file of torch.distributed.pipelining
    #[arg(long, value_name = "NAME|FILE")]
    schedule: String,
    /// Workers, each with its part of the model; not needed for a CSV file
    #[arg(long, value_name = "N")]
    stages: Option<usize>,
    /// Micro-batches of a step; not needed for a CSV file
    #[arg(long, value_name = "N")]
    micro_batches: Option<usize>,
    /// Stages of each worker (interleaved)
    #[arg(long, value_name = "N", default_value_t = 2)]
    chunks: usize,
    /// Workers that share each stage and take its micro-batches in turn (pipedream, 1f1b)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    replicas: Vec<usize>,
    /// Micro-batches whose forward pass is recomputed: never, except-last, always
    #[arg(long, value_name = "MODE", default_value_t = Recompute::Never)]
    recompute: Recompute,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    times: TimeFlags,
    #[command(flatten)]
    memory: MemoryFlags,
    #[command(flatten)]
    files: FileFlags,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Times")]
struct TimeFlags {
    /// Forward pass of a worker's part, in milliseconds; or one for each stage
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "1")]
    forward: Vec<f64>,
    /// Gradient of the input, the first half of backward; or one for each stage
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "1")]
    backward: Vec<f64>,
    /// Gradients of the weights, the second half of backward; or one for each stage
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "1")]
    weight: Vec<f64>,
    /// Latency of a message between workers
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    send: f64,
    /// Bytes a second between workers [default: no limit]
    #[arg(long, value_name = "BYTES")]
    bandwidth: Option<f64>,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 0.0)]
    message: f64,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory")]
struct MemoryFlags {
    /// Bytes of activations of a micro-batch in a worker's part; or one for each stage
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    memory: Vec<f64>,
    /// Bytes of an input that is kept for recomputation
    #[arg(long, value_name = "BYTES", default_value_t = 0.0)]
    input_memory: f64,
    /// Bytes of a worker's parameters, gradients and optimizer
    #[arg(long, value_name = "BYTES", default_value_t = 0.0)]
    fixed_memory: f64,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Files")]
struct FileFlags {
    /// Draw the step as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the step as a trace for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the schedule as a CSV file of torch.distributed.pipelining
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = SimulateFlags::augment_args(Command::new("simulate"));
    output::with_negative_numbers(command)
        .about("Predict step time, bubble and memory of a schedule")
        .long_about(None)
}

/// Simulates a step, and prints what it costs.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let asked = SimulateFlags::from_arg_matches(matches)?;
    let (name, schedule) = asked.schedule()?;
    let costs = asked.costs(&schedule)?;
    let simulation = schedule.simulate(&costs)?;
    let is_small = schedule.stages() * schedule.micro_batches() <= MANY;
    let is_shown = !asked.json && is_small;
    let timeline = if is_shown || asked.files.svg.is_some() || asked.files.trace.is_some() {
        asked.timeline(&schedule)?
    } else {
        Timeline::default()
    };
    if asked.json {
        output::print_json(&asked.report(&name, &schedule, &simulation));
    } else {
        output::print(&asked.text(&name, &schedule, &simulation, &timeline));
    }
    asked.write(&schedule, &timeline)?;
    Ok(ExitCode::SUCCESS)
}

impl SimulateFlags {
    /// The schedule, and what to call it.
    fn schedule(&self) -> Result<(String, Schedule), CliError> {
        let rule = match self.schedule.parse::<Rule>() {
            Ok(rule) => rule,
            Err(unknown) => return self.schedule_of_file(unknown),
        };
        let needed = |number: Option<usize>, flag| number.ok_or(CliError::Needed { flag });
        let workers = needed(self.stages, "--stages")?;
        let micro_batches = needed(self.micro_batches, "--micro-batches")?;
        if !self.replicas.is_empty() && !rule.takes_replicas() {
            return Err(CliError::NoReplicas { rule });
        }
        let scheduler = rule.scheduler(&RuleOptions {
            chunks: self.chunks,
            replicas: self.replicas.clone(),
        });
        let stages = match scheduler.stages(workers) {
            // Replicas are extra workers; `--stages` are the stages.
            _ if !self.replicas.is_empty() => workers,
            // The scheduler's error says why.
            0 => workers,
            stages => stages,
        };
        let passes = stages.saturating_mul(micro_batches);
        if passes > MOST || workers.saturating_mul(self.chunks) > MOST {
            return Err(CliError::TooMany {
                stages,
                micro_batches,
            });
        }
        if passes > MANY {
            eprintln!("{passes} forward passes: this takes some seconds");
        }
        let schedule = scheduler.schedule(stages, micro_batches)?;
        Ok((scheduler.name().to_owned(), schedule))
    }

    fn schedule_of_file(&self, unknown: UnknownRule) -> Result<(String, Schedule), CliError> {
        let path = PathBuf::from(&self.schedule);
        if !path.exists() {
            return Err(CliError::NoSchedule {
                tip: suggest::tip(&self.schedule, Rule::ALL.map(Rule::name)),
                source: unknown,
            });
        }
        let schedule =
            Schedule::from_csv(&output::read(&path)?).map_err(|source| CliError::Read {
                path: path.clone(),
                source: source.into(),
            })?;
        for (flag, asked, own) in [
            ("--stages", self.stages, schedule.workers().len()),
            (
                "--micro-batches",
                self.micro_batches,
                schedule.micro_batches(),
            ),
        ] {
            if let Some(asked) = asked.filter(|&asked| asked != own) {
                return Err(CliError::OtherSize {
                    path,
                    flag,
                    asked,
                    own,
                });
            }
        }
        Ok((path.display().to_string(), schedule))
    }

    /// The costs of each stage, in milliseconds.
    fn costs(&self, schedule: &Schedule) -> Result<Costs, CliError> {
        let stages = schedule.stages();
        let counts = schedule.stages_of_workers();
        // A single number is for all that a worker has.
        let of_stage = |flag, values: &[f64], stage: usize| match values {
            [] => Ok(0.0),
            [all] => Ok(all / counts[schedule.replicas(stage)[0]] as f64),
            each if each.len() == stages => Ok(each[stage]),
            each => Err(CliError::PerStage {
                flag,
                values: each.len(),
                stages,
            }),
        };
        let stage = |stage| {
            let forward = of_stage("--forward", &self.times.forward, stage)?;
            let activations = of_stage("--memory", &self.memory.memory, stage)?;
            Ok(StageCosts {
                forward,
                quiet: forward,
                input: of_stage("--backward", &self.times.backward, stage)?,
                weight: of_stage("--weight", &self.times.weight, stage)?,
                update: 0.0,
                output: self.times.message,
                memory: StageMemory {
                    fixed: of_stage("--fixed-memory", &[self.memory.fixed_memory], stage)?,
                    input: self.memory.input_memory,
                    activations,
                    context: activations,
                    version: 0.0,
                },
            })
        };
        Ok(Costs {
            stages: (0..stages).map(stage).collect::<Result<_, CliError>>()?,
            links: vec![Link {
                latency: self.times.send,
                bandwidth: self
                    .times
                    .bandwidth
                    .map_or(f64::INFINITY, |bytes| bytes * MILLISECOND),
            }],
            recompute: self.recompute,
        })
    }

    /// Everything, in milliseconds, bytes and micro-batches.
    fn report(&self, name: &str, schedule: &Schedule, simulation: &Simulation) -> Value {
        let path = simulation.critical_path();
        let path: Vec<_> = path.iter().map(|(_, action)| action.to_string()).collect();
        let versions = schedule.weight_versions(false).unwrap_or_default();
        json!({
            "schedule": name,
            "workers": schedule.workers().len(),
            "stages": schedule.stages(),
            "micro_batches": schedule.micro_batches(),
            "step_time": simulation.step_time(),
            "makespan": simulation.makespan(),
            "bubble": simulation.bubble(),
            "utilisation": simulation.utilisation(),
            "busy": simulation.busy(),
            "peak_activations": schedule.peak_activations(),
            "peak_weight_contexts": schedule.peak_weight_contexts(),
            "peak_memory": simulation.peak_memory(),
            "weight_versions": versions,
            "critical_path": path,
        })
    }

    fn text(
        &self,
        name: &str,
        schedule: &Schedule,
        simulation: &Simulation,
        timeline: &Timeline,
    ) -> String {
        let mut text = format!(
            "{name}: {}, {}, {}\nstep {:.4} ms, bubble {:.2} %\n",
            output::count(schedule.workers().len(), "worker", "workers"),
            output::count(schedule.stages(), "stage", "stages"),
            output::count(schedule.micro_batches(), "micro-batch", "micro-batches"),
            simulation.step_time(),
            100.0 * simulation.bubble()
        );
        if simulation.makespan() > simulation.step_time() * (1.0 + 1e-9) {
            text += &format!(
                "if workers wait for each other between steps, as drawn: {:.4} ms\n",
                simulation.makespan(),
            );
        }
        text += &format!(
            "\n{}\n{}\n",
            self.table(schedule, simulation),
            critical(simulation)
        );
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        if timeline.workers.is_empty() {
            text += "\ntoo large to be drawn here: --svg draws it\n";
        } else {
            text += &format!("\n{}\n", timeline.to_text(output::width(), colour));
        }
        text
    }

    fn table(&self, schedule: &Schedule, simulation: &Simulation) -> String {
        let has_memory = !self.memory.memory.is_empty() || self.memory.fixed_memory > 0.0;
        let mut table = Table::new("worker | >busy | >waits | >activations | >weight contexts");
        if has_memory {
            table.column(">memory");
        }
        if schedule.is_asynchronous() {
            table.column(">weight versions");
        }
        let (busy, memory) = (simulation.utilisation(), simulation.peak_memory());
        let (activations, contexts) =
            (schedule.peak_activations(), schedule.peak_weight_contexts());
        let versions = schedule.weight_versions(false).unwrap_or_default();
        for worker in 0..busy.len().min(SHOWN) {
            let mut row = vec![
                worker.to_string(),
                format!("{:.1} %", 100.0 * busy[worker]),
                format!("{:.1} %", 100.0 * (1.0 - busy[worker])),
                output::number(activations[worker]),
                output::number(contexts[worker]),
            ];
            if has_memory {
                row.push(format_bytes(memory[worker] as u64));
            }
            if schedule.is_asynchronous() {
                row.push(versions[worker].to_string());
            }
            table.row(row);
        }
        let mut text = table.to_string();
        if busy.len() > SHOWN {
            text += &format!("… and {} more (--json has all)\n", busy.len() - SHOWN);
        }
        text
    }

    /// What happens when, in real milliseconds.
    fn timeline(&self, schedule: &Schedule) -> Result<Timeline, CliError> {
        let mut costs = self.costs(schedule)?;
        for stage in &mut costs.stages {
            stage.forward *= MILLISECOND;
            stage.quiet *= MILLISECOND;
            stage.input *= MILLISECOND;
            stage.weight *= MILLISECOND;
        }
        for link in &mut costs.links {
            link.latency *= MILLISECOND;
            link.bandwidth /= MILLISECOND;
        }
        Ok(schedule.simulate(&costs)?.timeline())
    }

    fn write(&self, schedule: &Schedule, timeline: &Timeline) -> Result<(), CliError> {
        if let Some(path) = &self.files.csv {
            output::write(path, &schedule.to_csv())?;
        }
        if let Some(path) = &self.files.svg {
            output::write(path, &timeline.to_svg(&[]))?;
        }
        if let Some(path) = &self.files.trace {
            output::write_with(path, |file| timeline.write_chrome_trace(&[], file))?;
        }
        Ok(())
    }
}

/// Forward passes that take some seconds, and more than fit a machine.
const MANY: usize = 1_000_000;
const MOST: usize = 64_000_000;

/// What the step's time is made of.
fn critical(simulation: &Simulation) -> String {
    let path = simulation.critical_path();
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for (worker, _) in &path {
        match parts.last_mut() {
            Some((last, count)) if last == worker => *count += 1,
            _ => parts.push((*worker, 1)),
        }
    }
    const SHOWN: usize = 12;
    let shown = parts.iter().take(SHOWN);
    let words: Vec<_> = shown
        .map(|(worker, count)| format!("{count} on {worker}"))
        .collect();
    let more = match parts.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(", … ({more} more)"),
    };
    format!(
        "critical path: {}: {}{more}",
        output::count(path.len(), "action", "actions"),
        words.join(", ")
    )
}
