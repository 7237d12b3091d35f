//! `stovepipe simulate`: what a schedule would cost.

use std::{cell::RefCell, path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};
use stovepipe::{
    plan::{BUCKET, LayerProfile, Machine, OptimizerState, Profile, Setup},
    schedule::{
        Costs, Link, Recompute, Rule, RuleOptions, Schedule, Scheduler, Segments, Simulation,
        StageCosts, StageMemory, Timeline, UnknownRule, WeightPolicy, count, format_bytes,
    },
    train::{run::show_count, settings::free_memory},
};

use crate::{
    data::check,
    error::{CliError, usage},
    flags,
    output::{self, Table},
    suggest,
};

const SHOWN: usize = 32;
/// Rows of the picture of a step.
const DRAWN: usize = 256;
/// Parts of the critical path that are shown.
const SHOWN_PARTS: usize = 12;
/// Forward passes that take about a second.
const MANY: usize = 500_000;
/// Bytes of a forward pass with its backward pass, at most, and of a stage.
const BYTES: [u64; 2] = [300, 500];
/// If nobody knows how much memory is free.
const UNKNOWN: u64 = 1 << 36;
/// Cells of a CSV file: each is at least one byte.
const MOST_CELLS: usize = 10_000_000_000;
/// Of a byte, in which segments are counted.
const PARTS: f64 = 1024.0;
/// In seconds. Times are given in milliseconds.
const MILLISECOND: f64 = 1e-3;

#[derive(Clone, Debug, Args)]
struct SimulateFlags {
    /// gpipe, 1f1b (or pipedream-flush), interleaved, zb-h1, zb-h2, zb-v, v-min, v-half, v-1f1b, pipedream, or a CSV file of torch.distributed.pipelining
    #[arg(long, value_name = "NAME|FILE")]
    schedule: String,
    /// Workers, each with its part of the model; not needed for a CSV file
    #[arg(long, value_name = "N")]
    stages: Option<usize>,
    /// Micro-batches of a step, or of each update of pipedream; not needed for a CSV file
    #[arg(long, value_name = "N")]
    micro_batches: Option<usize>,
    /// Stages of each worker (interleaved)
    #[arg(long, value_name = "N", default_value_t = 2)]
    chunks: usize,
    /// Updates that follow each other without a flush (pipedream)
    #[arg(long, value_name = "N", default_value_t = 8)]
    window: usize,
    /// All stages use the version of the weights that the first stage used (pipedream)
    #[arg(long)]
    vertical_sync: bool,
    /// Workers that share each stage and take its micro-batches in turn (pipedream, 1f1b)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    replicas: Vec<usize>,
    /// What is recomputed: never, except-last, always, or layers (0-3,7-9)
    #[arg(long, value_name = "MODE|LAYERS", default_value_t = Recompute::Never)]
    recompute: Recompute,
    /// Equal layers of each stage; or one number for each (--recompute 0-3)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    layers: Vec<usize>,
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
    /// Memory of a device, a line in the picture of --memory-svg
    #[arg(long, value_name = "BYTES")]
    device_memory: Option<f64>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Files")]
struct FileFlags {
    /// Draw the step as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw what each worker keeps over time as an SVG picture
    #[arg(long, value_name = "FILE")]
    memory_svg: Option<PathBuf>,
    /// Write the step as a trace for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the schedule as a CSV file of torch.distributed.pipelining
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub fn command() -> Command {
    let command = SimulateFlags::augment_args(Command::new("simulate"));
    flags::finished(command)
        .about("Predict step time, bubble and memory of a schedule")
        .long_about(None)
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let asked = SimulateFlags::from_arg_matches(matches)?;
    asked.check(matches)?;
    let files = &asked.files;
    let files = [&files.svg, &files.memory_svg, &files.trace, &files.csv];
    output::check_files(files.into_iter().flatten())?;
    let steps = Steps::default();
    let (name, schedule) = asked.schedule(&steps)?;
    asked.check_csv(&schedule)?;
    if asked.vertical_sync && !schedule.is_asynchronous() {
        return Err(usage!("{name} has no updates: leave --vertical-sync out"));
    }
    steps.next();
    let costs = asked.costs(&schedule)?;
    let simulation = schedule.simulate(&costs)?;
    steps.next();
    let is_small =
        schedule.stages() * schedule.micro_batches() <= MANY && schedule.workers().len() <= DRAWN;
    let is_shown = !asked.json && is_small;
    let timeline = if is_shown || asked.files.svg.is_some() || asked.files.trace.is_some() {
        asked.timeline(&schedule)?
    } else {
        Timeline::default()
    };
    asked.write(&schedule, &timeline)?;
    if let Some(path) = &asked.files.memory_svg {
        let limits = vec![asked.memory.device_memory; schedule.workers().len()];
        let costs = asked.costs_in_seconds(&schedule)?;
        let picture = schedule.simulate(&costs)?.memory_to_svg(&[], &limits, &[]);
        output::write(path, &picture)?;
    }
    steps.next();
    let report = || asked.report(&name, &schedule, &simulation);
    let text = || asked.text(&name, &schedule, &simulation, &timeline);
    output::print_either(asked.json, || steps.last(report()), || steps.last(text()))?;
    if is_shown && !timeline.workers.is_empty() {
        output::print_raw(&timeline.to_text(output::width(), output::has_colours()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows which of these is done, if a simulation is large: the schedule, its times, its timeline, the
/// report.
#[derive(Default)]
struct Steps(RefCell<Option<(usize, Shown)>>);

type Shown = Box<dyn Fn(usize)>;

impl Steps {
    fn begin(&self, name: &str) {
        let shown = show_count(&format!("simulating {name}:"), "step", 4);
        self.0.replace(Some((0, Box::new(shown))));
    }

    fn next(&self) {
        if let Some((done, shown)) = &mut *self.0.borrow_mut() {
            *done += 1;
            shown(*done);
        }
    }

    fn last<T>(&self, result: T) -> T {
        self.next();
        result
    }
}

impl SimulateFlags {
    fn check(&self, matches: &ArgMatches) -> Result<(), CliError> {
        let rule = self.schedule.parse::<Rule>().ok();
        let (times, memory) = (&self.times, &self.memory);
        let positive = |bytes: f64| bytes.is_finite() && bytes > 0.0;
        let zero_or_more = |number: f64| number.is_finite() && number >= 0.0;
        check("bandwidth", times.bandwidth, positive, "greater than 0")?;
        check(
            "device-memory",
            memory.device_memory,
            positive,
            "greater than 0",
        )?;
        for (setting, value) in [
            ("send", times.send),
            ("message", times.message),
            ("input-memory", memory.input_memory),
            ("fixed-memory", memory.fixed_memory),
        ] {
            check(setting, value, zero_or_more, "at least 0")?;
        }
        let never = self.recompute == Recompute::Never;
        let has_segments = matches!(self.recompute, Recompute::Segments(_));
        let has_chunks = rule.is_some_and(Rule::takes_chunks);
        let is_synchronous = rule.is_some_and(Rule::is_synchronous);
        let idle = [
            (
                "window",
                rule != Some(Rule::PipeDream),
                "without --schedule pipedream",
            ),
            (
                "vertical-sync",
                is_synchronous,
                "without --schedule pipedream",
            ),
            ("chunks", !has_chunks, "without --schedule interleaved"),
            ("replicas", rule.is_none(), "on a schedule from a file"),
            ("message", times.bandwidth.is_none(), "without --bandwidth"),
            ("bandwidth", times.message == 0.0, "without --message"),
            ("input-memory", never, "without --recompute"),
            ("layers", !has_segments, "without layers in --recompute"),
            ("memory-svg", memory.memory.is_empty(), "without --memory"),
            (
                "device-memory",
                self.files.memory_svg.is_none(),
                "without --memory-svg",
            ),
        ];
        flags::refuse_idle(matches, idle)
    }

    /// The schedule, and what to call it.
    fn schedule(&self, steps: &Steps) -> Result<(String, Schedule), CliError> {
        let rule = match self.schedule.parse::<Rule>() {
            Ok(rule) => rule,
            Err(unknown) => return self.schedule_of_file(unknown, steps),
        };
        let needed = |number: Option<usize>, flag| {
            let missing = || usage!("{flag} is needed: a schedule by name works for any number");
            number.ok_or_else(missing)
        };
        let workers = needed(self.stages, "--stages")?;
        let micro_batches = needed(self.micro_batches, "--micro-batches")?;
        if !self.replicas.is_empty() && !rule.takes_replicas() {
            let rules = Rule::ALL.into_iter().filter(|rule| rule.takes_replicas());
            let rules = rules.map(Rule::name).collect::<Vec<_>>().join(" and ");
            return Err(usage!("{rule} has no replicas: --replicas is for {rules}"));
        }
        let is_idle = |&(_, replicas): &(usize, usize)| replicas > micro_batches;
        let mut replicas = self.replicas.iter().copied().take(workers).enumerate();
        if let Some((stage, replicas)) = replicas.find(is_idle) {
            return Err(usage!(
                "stage {stage} has {} for {}: give it at most one for each",
                count(replicas, "replica"),
                count(micro_batches, "micro-batch")
            ));
        }
        let scheduler = rule.scheduler(&RuleOptions {
            chunks: self.chunks,
            replicas: self.replicas.clone(),
            update_every: Some(micro_batches),
        });
        let micro_batches = if rule.is_synchronous() {
            micro_batches
        } else {
            if self.window == 0 {
                return Err(usage!("--window is 0: a window has at least one update"));
            }
            micro_batches.saturating_mul(self.window)
        };
        let stages = match scheduler.stages(workers) {
            // Replicas are extra workers; `--stages` are the stages.
            _ if !self.replicas.is_empty() => workers,
            // The scheduler's error says why.
            0 => workers,
            stages => stages,
        };
        let passes = stages.saturating_mul(micro_batches);
        let bytes = |count: usize, each| (count as u64).saturating_mul(each);
        let needs = bytes(passes, BYTES[0]).saturating_add(bytes(stages, BYTES[1]));
        let has = free_memory().unwrap_or(UNKNOWN);
        if needs > has {
            return Err(usage!(
                "simulating {stages} stages with {micro_batches} micro-batches takes about {} of \
                 memory, but only {} are free: take fewer of --stages, --chunks or --micro-batches",
                format_bytes(needs),
                format_bytes(has)
            ));
        }
        if passes > MANY {
            steps.begin(scheduler.name());
        }
        let schedule = scheduler.schedule(stages, micro_batches)?;
        Ok((scheduler.name().to_owned(), schedule))
    }

    fn schedule_of_file(
        &self,
        unknown: UnknownRule,
        steps: &Steps,
    ) -> Result<(String, Schedule), CliError> {
        let path = PathBuf::from(&self.schedule);
        if !path.exists() {
            let tip = suggest::tip(&self.schedule, Rule::ALL.map(Rule::name));
            return Err(usage!("{unknown}, or a CSV file that exists{tip}"));
        }
        let (name, text) = (path.display().to_string(), output::read(&path)?);
        // A forward and a backward pass with their commas are about ten bytes.
        if text.len() / 10 > MANY {
            steps.begin(&name);
        }
        let schedule = Schedule::from_csv(&text).map_err(CliError::file(&path))?;
        let micro_batches = schedule.micro_batches();
        for (flag, asked, own) in [
            ("--stages", self.stages, schedule.workers().len()),
            ("--micro-batches", self.micro_batches, micro_batches),
        ] {
            if let Some(asked) = asked.filter(|&asked| asked != own) {
                return Err(usage!(
                    "{flag} is {asked}, but {name} is for {own}: leave it out"
                ));
            }
        }
        Ok((name, schedule))
    }

    /// Refuses a file of a size that nobody wants.
    fn check_csv(&self, schedule: &Schedule) -> Result<(), CliError> {
        match &self.files.csv {
            Some(path) if schedule.csv_cells() > MOST_CELLS => Err(usage!(
                "{} would have {} cells, a row for each worker and a column for each clock cycle: \
                 take fewer stages or micro-batches",
                path.display(),
                schedule.csv_cells()
            )),
            _ => Ok(()),
        }
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
            each => Err(usage!(
                "{flag} has {}: give one for all workers, or one for each of {}",
                count(each.len(), "number"),
                count(stages, "stage")
            )),
        };
        let stage = |stage| {
            let forward = of_stage("--forward", &self.times.forward, stage)?;
            let activations = of_stage("--memory", &self.memory.memory, stage)?;
            Ok(StageCosts {
                forward,
                quiet: forward,
                again: forward,
                input: of_stage("--backward", &self.times.backward, stage)?,
                weight: of_stage("--weight", &self.times.weight, stage)?,
                output: self.times.message,
                memory: StageMemory {
                    fixed: of_stage("--fixed-memory", &[self.memory.fixed_memory], stage)?,
                    input: self.memory.input_memory,
                    activations,
                    rerun: activations,
                    context: activations,
                    ..StageMemory::default()
                },
                ..StageCosts::default()
            })
        };
        let mut costs = Costs {
            stages: (0..stages).map(stage).collect::<Result<_, CliError>>()?,
            links: vec![Link {
                latency: self.times.send,
                bandwidth: self.times.bandwidth.unwrap_or(f64::INFINITY) * MILLISECOND,
            }],
            skips: Vec::new(),
            recompute: self.recompute.clone(),
            speeds: Vec::new(),
            weights: self.policy(),
        };
        if let Recompute::Segments(segments) = &self.recompute {
            self.recompute_layers(schedule, &mut costs, segments)?;
        }
        Ok(costs)
    }

    /// Changes the costs of stages whose layers, which are equal, are recomputed in part.
    fn recompute_layers(
        &self,
        schedule: &Schedule,
        costs: &mut Costs,
        segments: &Segments,
    ) -> Result<(), CliError> {
        let stages = costs.stages.len();
        let balance = match &self.layers[..] {
            [all] => vec![*all; stages],
            each if each.len() == stages => each.to_vec(),
            each => {
                return Err(usage!(
                    "--layers has {}: give one for all stages, or one for each of {}",
                    count(each.len(), "number"),
                    count(stages, "stage")
                ));
            }
        };
        if balance.contains(&0) {
            return Err(usage!("--layers is 0: a stage has at least one layer"));
        }
        segments
            .check(balance.iter().sum())
            .map_err(|error| usage!("{error} (--layers)"))?;
        // A profile has whole bytes.
        let whole = |bytes: f64| (PARTS * bytes) as u64;
        let input = self.memory.input_memory;
        let layers = costs
            .stages
            .iter()
            .zip(&balance)
            .flat_map(|(stage, &count)| {
                let share = |all: f64| all / count as f64;
                let layer = LayerProfile {
                    forward: share(stage.forward),
                    backward: share(stage.input + stage.weight),
                    output: whole(input),
                    kept: Some(whole(share((stage.memory.activations - input).max(0.0)))),
                    ..LayerProfile::default()
                };
                vec![layer; count]
            });
        let workers = schedule.workers().len();
        let setup = Setup {
            profiles: &[Profile {
                samples: 1,
                input: whole(input),
                layers: layers.collect(),
                skips: vec![],
            }],
            machine: &Machine::uniform(workers),
            devices: &(0..workers).collect::<Vec<_>>(),
            schedule,
            recompute: &self.recompute,
            weights: self.policy(),
            state: OptimizerState::default(),
            bucket: BUCKET,
        };
        let by_layer = setup.costs(&balance)?;
        for (index, (stage, found)) in costs.stages.iter_mut().zip(by_layer.stages).enumerate() {
            (stage.quiet, stage.again, stage.late) = (found.quiet, found.again, found.late);
            let (memory, found) = (&mut stage.memory, found.memory);
            for (bytes, found) in [
                (&mut memory.input, found.input),
                (&mut memory.kept, found.kept),
                (&mut memory.rerun, found.rerun),
            ] {
                *bytes = found / PARTS;
            }
            // A planner counts the first stage's inputs as the mini-batch.
            if index == 0 {
                let is_rerun = !self.recompute.segments(0..1).is_empty();
                let first = if is_rerun {
                    &mut memory.input
                } else {
                    &mut memory.kept
                };
                *first += input;
                memory.rerun += input;
            }
        }
        Ok(())
    }

    fn policy(&self) -> WeightPolicy {
        match self.vertical_sync {
            true => WeightPolicy::VerticalSync,
            false => WeightPolicy::Stashing,
        }
    }

    /// Everything, in milliseconds, bytes and micro-batches.
    fn report(&self, name: &str, schedule: &Schedule, simulation: &Simulation) -> Value {
        let path = simulation.critical_path();
        let path: Vec<_> = path.iter().map(|(_, action)| action.to_string()).collect();
        let versions = schedule.weight_versions(self.policy()).unwrap_or_default();
        json!({
            "schedule": name,
            "workers": schedule.workers().len(),
            "stages": schedule.stages(),
            "micro_batches": schedule.micro_batches(),
            "updates": schedule.updates(),
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
        let updates = match schedule.update_every() {
            Some(every) => format!(
                ", {} after {} each, {}",
                count(schedule.updates(), "update"),
                count(every, "micro-batch"),
                self.policy()
            ),
            None => String::new(),
        };
        let each = match schedule.updates() {
            0 => String::new(),
            updates => {
                let each = simulation.step_time() / updates as f64;
                format!(", {} ms an update", output::decimals(each, 4))
            }
        };
        let mut text = format!(
            "{name}: {}, {}, {}{updates}\nstep {} ms{each}, bubble {:.2} %\n",
            count(schedule.workers().len(), "worker"),
            count(schedule.stages(), "stage"),
            count(schedule.micro_batches(), "micro-batch"),
            output::decimals(simulation.step_time(), 4),
            100.0 * simulation.bubble()
        );
        if simulation.makespan() > simulation.step_time() * (1.0 + 1e-9) {
            let makespan = output::decimals(simulation.makespan(), 4);
            let what = "if workers wait for each other between steps, as drawn";
            text += &format!("{what}: {makespan} ms\n");
        }
        let table = self.table(schedule, simulation);
        text += &format!("\n{table}\n{}\n\n", critical(simulation));
        if timeline.workers.is_empty() {
            text += "too large to be drawn here: --svg draws it\n";
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
        let versions = schedule.weight_versions(self.policy()).unwrap_or_default();
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
        let costs = self.costs_in_seconds(schedule)?;
        Ok(schedule.simulate(&costs)?.timeline())
    }

    fn costs_in_seconds(&self, schedule: &Schedule) -> Result<Costs, CliError> {
        let mut costs = self.costs(schedule)?;
        for stage in &mut costs.stages {
            stage.forward *= MILLISECOND;
            stage.quiet *= MILLISECOND;
            stage.again *= MILLISECOND;
            stage.late *= MILLISECOND;
            stage.input *= MILLISECOND;
            stage.weight *= MILLISECOND;
        }
        for link in &mut costs.links {
            link.latency *= MILLISECOND;
            link.bandwidth /= MILLISECOND;
        }
        Ok(costs)
    }

    fn write(&self, schedule: &Schedule, timeline: &Timeline) -> Result<(), CliError> {
        if let Some(path) = &self.files.csv {
            output::write_with(path, |file| schedule.write_csv(file))?;
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
    let shown = parts.iter().take(SHOWN_PARTS);
    let words = shown.map(|(worker, count)| format!("{count} on {worker}"));
    let words = words.collect::<Vec<_>>().join(", ");
    let more = match parts.len().saturating_sub(SHOWN_PARTS) {
        0 => String::new(),
        more => format!(", … ({more} more)"),
    };
    let actions = count(path.len(), "action");
    format!("critical path: {actions}: {words}{more}")
}
