//! Plans for a chain of layers.

use std::fmt::Write;

use serde_json::{Value, json};
use stovepipe::{
    pipeline::Precision,
    plan::{Candidate, Machine, MemoryUse, Plan, PlanRequest, Profile, RunnerUp, Verdict},
    schedule::{Recompute, Rule, RuleOptions, Scheduler, Segments, count, format_bytes},
    train::{
        PipelineSettings,
        settings::{BalanceSetting, OffloadSetting, RecomputeSetting, ScheduleSetting},
    },
};

use super::{flags::PlanFlags, without_flush::WithoutFlush};
use crate::{
    error::{CliError, usage},
    files::{PlanFile, PlannedTraining, Prediction},
    output::{self, Table},
};

const SHOWN: usize = 8;

pub fn plan(flags: &PlanFlags, profile: &Profile, machine: &Machine) -> Result<(), CliError> {
    let mini_batch = flags.batch_size.unwrap_or(8 * profile.samples);
    let mut asked = PlanRequest {
        state: flags.state(),
        replicas: flags.replicas,
        ..PlanRequest::new(profile, machine, mini_batch)
    };
    if flags.workers > Some(profile.layers.len()) {
        // An error names the number; otherwise the plan would be for fewer.
        asked.workers = vec![machine.devices.len()];
    }
    if !flags.micro_batches.is_empty() {
        asked.micro_batches.clone_from(&flags.micro_batches);
    }
    let mut schedules = flags.schedules.iter();
    let asynchronous = schedules.find(|rule| !rule.is_synchronous());
    if let Some(rule) = asynchronous.filter(|_| flags.schedules.len() > 1) {
        return Err(usage!(
            "{rule} is never chosen, because it does not give the result of one device: name it alone, \
             to see what it would gain"
        ));
    }
    if let Some(rule) = asynchronous.filter(|_| flags.precision == Precision::F16) {
        return Err(usage!("{rule} does not work with --precision f16"));
    }
    if let Some(rule) = asynchronous.filter(|_| flags.offload != OffloadSetting::None) {
        return Err(usage!("{rule} does not work with --offload: leave it out"));
    }
    if !flags.schedules.is_empty() {
        asked.rules.clone_from(&flags.schedules);
    }
    if !flags.recompute.is_empty() {
        asked.by_layer = flags.recompute.contains(&RecomputeSetting::ByLayer);
        let fixed = flags.recompute.iter().filter_map(RecomputeSetting::fixed);
        if fixed
            .clone()
            .any(|fixed| matches!(fixed, Recompute::Segments(_)))
        {
            return Err(usage!(
                "--recompute: a plan chooses layers itself: use by-layer, always, except-last or never"
            ));
        }
        let has_memory = machine.devices.iter().any(|device| device.memory.is_some());
        if asked.by_layer && !has_memory {
            return Err(usage!(
                "--recompute by-layer: say how much memory a device has, with --memory or in the machine's file"
            ));
        }
        asked.recompute = fixed.cloned().collect();
    }
    let plan = asked.plan()?;
    let left_out = asked.left_out();
    let without_flush = asynchronous.map(|_| {
        let rules = Rule::synchronous().collect();
        let usual = PlanRequest { rules, ..asked }.plan();
        WithoutFlush::new(&plan.best, usual.ok().as_ref())
    });
    let report = ChainReport {
        profile,
        machine,
        mini_batch,
        plan: &plan,
        without_flush: without_flush.transpose()?,
        left_out: &left_out,
    };
    if let Some(path) = &flags.out {
        report.file(flags).write(path)?;
    }
    output::print_either(flags.json, || report.json(), || report.text())?;
    Ok(())
}

struct ChainReport<'a> {
    profile: &'a Profile,
    machine: &'a Machine,
    mini_batch: usize,
    plan: &'a Plan,
    without_flush: Option<WithoutFlush>,
    /// Rules that were not tried.
    left_out: &'a [Rule],
}

impl ChainReport<'_> {
    fn file(&self, flags: &PlanFlags) -> PlanFile {
        let best = &self.plan.best;
        let (stages, replicas) = match best.shares.len() {
            0 if has_replicated_stages(best) => (best.replicas.len(), best.replicas.clone()),
            0 => (best.workers(), vec![1]),
            pipelines => (best.workers() / pipelines, vec![pipelines]),
        };
        let is_equal = best.shares.iter().all(|&share| share == 1);
        let devices = best.devices.iter();
        let names = devices.map(|&device| self.machine.devices[device].name.clone());
        let usual = PipelineSettings::default();
        let has_chunks = best.schedule.takes_chunks();
        PlanFile {
            pipeline: PipelineSettings {
                stages,
                replicas,
                shares: if is_equal {
                    Vec::new()
                } else {
                    best.shares.clone()
                },
                devices: names.collect(),
                balance: BalanceSetting::Layers(best.forecast.balance.clone()),
                micro_batches: best.micro_batches,
                schedule: ScheduleSetting::Rule(best.schedule),
                chunks: if has_chunks {
                    best.chunks
                } else {
                    usual.chunks
                },
                recompute: RecomputeSetting::Fixed(best.forecast.recompute.clone()),
                threads_per_stage: flags.threads_per_stage,
                precision: flags.precision,
                ..usual
            },
            training: PlannedTraining {
                batch_size: self.mini_batch,
            },
            forecast: Prediction {
                step_time: best.forecast.step_time,
                bubble: best.forecast.bubble,
                memory: (best.forecast.memory.iter().copied())
                    .map(MemoryUse::total)
                    .collect(),
            },
        }
    }

    /// For each stage its layers, the worker of its first replica, and seconds for a micro-batch.
    fn stages(&self) -> Vec<(std::ops::Range<usize>, usize, f64)> {
        let best = &self.plan.best;
        let samples = self.mini_batch.div_ceil(best.micro_batches);
        let times = self.profile.for_samples(samples).times();
        let options = RuleOptions::with_chunks(best.chunks);
        let scheduler = best.schedule.scheduler(&options);
        let placed = scheduler.schedule(best.replicas.len(), best.micro_batches);
        let is_replicated = has_replicated_stages(best);
        let (mut end, mut first) = (0, 0);
        (best.forecast.balance.iter().zip(&best.replicas).enumerate())
            .map(|(stage, (&count, &replicas))| {
                let layers = end..end + count;
                end = layers.end;
                let worker = match (&placed, is_replicated) {
                    (Ok(schedule), false) => schedule.replicas(stage)[0],
                    _ => first,
                };
                first += replicas;
                let speed = self.machine.devices[best.devices[worker]].speed;
                let time = times[layers.clone()].iter().sum::<f64>() / speed;
                (layers, worker, time)
            })
            .collect()
    }

    fn json(&self) -> Value {
        let best = &self.plan.best;
        let stages = self.stages();
        let slowest = stages.iter().map(|stage| stage.2).fold(0.0, f64::max);
        let stages = stages.iter().zip(&best.replicas).map(|(stage, replicas)| {
            json!({
                "layers": [stage.0.start, stage.0.end],
                "replicas": replicas,
                "worker": stage.1,
                "device": self.machine.devices[best.devices[stage.1]].name,
                "stage_time": stage.2,
            })
        });
        let runners_up = self.plan.runners_up.iter().map(|other| {
            let mut value = candidate(&other.candidate);
            value["why"] = json!(other.verdict.to_string());
            value
        });
        let mut value = candidate(best);
        value["batch_size"] = json!(self.mini_batch);
        value["stages"] = stages.collect();
        value["stage_time"] = json!(slowest);
        value["exact"] = json!(self.plan.exact);
        value["left_out"] = json!(self.left_out);
        value["runners_up"] = runners_up.collect();
        if let Some(own) = &self.without_flush {
            value["without_flush"] = own.json();
        }
        value
    }

    fn text(&self) -> String {
        let best = &self.plan.best;
        let mut text = String::new();
        let workers = count(best.workers(), "worker");
        let micro_batches = count(best.micro_batches, "micro-batch");
        let samples = self.mini_batch.div_ceil(best.micro_batches);
        let chunks = match best.chunks {
            1 => String::new(),
            chunks => format!("{chunks} stages each, "),
        };
        let shares: Vec<_> = best.shares.iter().map(ToString::to_string).collect();
        let replicas = match shares.len() {
            0 => String::new(),
            pipelines => format!("{pipelines} replicas with shares {}, ", shares.join(",")),
        };
        let (schedule, recompute) = (best.schedule, &best.forecast.recompute);
        let sizes = format!("{workers}, {micro_batches} of {}", count(samples, "sample"));
        let _ = writeln!(
            text,
            "{schedule}: {sizes}, {replicas}{chunks}recomputation {recompute}"
        );
        let step_time = best.forecast.step_time;
        let rate = self.mini_batch as f64 / step_time;
        let (step, bubble) = (output::seconds(step_time), 100.0 * best.forecast.bubble);
        let what = match self.without_flush {
            Some(_) => "update",
            None => "step",
        };
        let _ = writeln!(
            text,
            "{what} {step} ({rate:.1} samples/s), bubble {bubble:.1} %\n"
        );
        if let Some(own) = &self.without_flush {
            let _ = writeln!(text, "{}", own.text());
        }
        let _ = writeln!(text, "{}", self.stage_table());
        let _ = writeln!(text, "{}", self.memory_table());
        let _ = writeln!(text, "{}", self.others());
        if !self.left_out.is_empty() {
            let names: Vec<_> = self.left_out.iter().map(|rule| rule.name()).collect();
            let why = "no layer can compute the gradients of its weights later";
            let _ = writeln!(text, "Not tried: {}, because {why}.", names.join(", "));
        }
        if !self.plan.exact {
            text += "Too many pipelines to try all: another may be a little faster.\n";
        }
        text
    }

    fn stage_table(&self) -> Table {
        let best = &self.plan.best;
        let mut table = Table::new("stage | layers | device | >replicas | >a micro-batch");
        let recompute = &best.forecast.recompute;
        let by_layer = matches!(recompute, Recompute::Segments(_));
        if by_layer {
            table.column("recomputed");
        }
        for (stage, ((layers, worker, time), replicas)) in
            self.stages().into_iter().zip(&best.replicas).enumerate()
        {
            let name = |layer: usize| &self.profile.layers[layer].name;
            let device = &self.machine.devices[best.devices[worker]].name;
            let (start, end) = (layers.start, layers.end - 1);
            let segments = Segments::new(recompute.segments(layers.clone()));
            let segments = segments.map_or("-".to_owned(), |segments| segments.to_string());
            let mut row = vec![
                stage.to_string(),
                format!("{start}–{end} ({} … {})", name(start), name(end)),
                format!("{worker} {device}"),
                replicas.to_string(),
                output::seconds(time),
            ];
            row.extend(by_layer.then_some(segments));
            table.row(row);
        }
        table
    }

    fn memory_table(&self) -> Table {
        let best = &self.plan.best;
        let mut table = Table::new(
            "worker | >busy | >parameters | >gradients | >optimizer | >batch | >inputs | >activations | >workspace | >all | >of",
        );
        for (worker, memory) in best.forecast.memory.iter().enumerate() {
            let memory_of_device = self.machine.devices[best.devices[worker]].memory;
            table.row(vec![
                worker.to_string(),
                format!("{:.1} %", 100.0 * best.forecast.utilisation[worker]),
                format_bytes(memory.parameters),
                format_bytes(memory.gradients),
                format_bytes(memory.optimizer),
                format_bytes(memory.batch),
                format_bytes(memory.inputs),
                format_bytes(memory.activations),
                format_bytes(memory.workspace),
                format_bytes(memory.total()),
                memory_of_device.map_or("-".to_owned(), format_bytes),
            ]);
        }
        table
    }

    fn others(&self) -> Table {
        let mut table =
            Table::new("other | recompute | >workers | >micro-batches | >step | why not");
        // Those that do not fit come last, and should be seen.
        let is_too_large = |other: &&RunnerUp| matches!(other.verdict, Verdict::TooLarge { .. });
        let all = || self.plan.runners_up.iter();
        let slower = all().filter(|other| !is_too_large(other)).take(SHOWN);
        for other in slower.chain(all().filter(is_too_large).take(SHOWN / 2)) {
            let candidate = &other.candidate;
            table.row(vec![
                candidate.schedule.to_string(),
                candidate.forecast.recompute.to_string(),
                candidate.workers().to_string(),
                candidate.micro_batches.to_string(),
                output::seconds(candidate.forecast.step_time),
                other.verdict.to_string(),
            ]);
        }
        table
    }
}

/// Whether stages have replicas of their own: not the whole pipeline.
fn has_replicated_stages(candidate: &Candidate) -> bool {
    candidate.shares.is_empty() && candidate.replicas.iter().any(|&count| count > 1)
}

fn candidate(candidate: &Candidate) -> Value {
    let memory = candidate.forecast.memory.iter();
    json!({
        "schedule": candidate.schedule.name(),
        "workers": candidate.workers(),
        "chunks": candidate.chunks,
        "micro_batches": candidate.micro_batches,
        "recompute": candidate.forecast.recompute.to_string(),
        "balance": candidate.forecast.balance,
        "replicas": candidate.replicas,
        "shares": candidate.shares,
        "step_time": candidate.forecast.step_time,
        "bubble": candidate.forecast.bubble,
        "utilisation": candidate.forecast.utilisation,
        "memory": memory.map(|memory| memory.total()).collect::<Vec<_>>(),
    })
}
