//! Backward passes in halves: zero-bubble schedules next to 1F1B, and next to the simulator.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench zero-bubble`

use std::collections::HashMap;

use stovepipe::schedule::{
    Action, Costs, Pass, Rule, RuleOptions, Schedule, Scheduler, SpanKind, StageCosts,
};
use stovepipe_benches::{
    Failure,
    arguments::{ModelChoice, SweepArguments},
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    layers::totals,
    measure::Seconds,
    models::models,
    piped::PipedSettings,
    report::{BenchReport, ReportTable, cell},
};
use stovepipe_plan::cut_chain;

const WORKERS: usize = 2;

/// Filters of AmoebaNet-D for small images: the usual 16 are fast and leave little work to defer.
const FILTERS: usize = 64;

const NOTE: &str = "\
Two workers of a thread each, without recomputation. `1f1b-iw` is 1F1B in which the gradient of the
input is sent before the gradients of the weights are computed, and nothing else differs.
stages: seconds of a micro-batch's passes through each stage, on one thread, the other idle. B is a
        whole backward pass, I and W are its halves.
promise: the schedule, simulated with these seconds.
1f1b/it: samples/s over those of 1F1B in the same rounds; promised: the same of the promises.
kept:   the most micro-batches for which a stage kept what gradients of weights need.";

pub fn main(flags: SweepArguments) -> Result<(), Failure> {
    let mut flags = flags.or_micro_batches(&[2], &[4, 8]);
    serve_or_compute_alone(&flags.arguments)?;
    let arguments = &mut flags.arguments;
    arguments.small_filters.get_or_insert(FILTERS);
    if arguments.model == ModelChoice::All {
        arguments.model = ModelChoice::Amoebanet32;
    }
    let mut report = BenchReport::begin("zero_bubble", &flags)?;
    report.note(NOTE);
    for model in models(&flags.arguments, 16) {
        measure(&*model, &flags, &mut report)?;
    }
    report.save(&flags.arguments.out)
}

fn measure(
    model: &dyn BenchModel,
    flags: &SweepArguments,
    report: &mut BenchReport,
) -> Result<(), Failure> {
    let rounds = flags.arguments.rounds(9);
    let layers = totals(&model.layer_costs(rounds)?);
    let mut stages = Vec::new();
    for chunks in [1, 2] {
        let cut = cut_chain(&layers, chunks * WORKERS)?;
        let passes = passes(model, &cut, rounds)?;
        report.table(stages_table(model, &cut, &passes));
        stages.push((cut, passes));
    }
    for &m in &flags.micro_batches {
        let candidates = candidates(m)?;
        let plans = candidates.iter().map(|candidate| PipedSettings {
            given: Some(candidate.schedule.clone()),
            ..PipedSettings::new(stages[candidate.chunks - 1].0.clone(), m)
        });
        let plans: Vec<_> = plans.collect();
        let costs = race(model, plans.iter().map(ContenderWork::passes), rounds)?;
        let promises = (candidates.iter())
            .map(|candidate| candidate.promise(&stages[candidate.chunks - 1].1))
            .collect::<Result<Vec<_>, _>>()?;
        let samples = (m * model.samples()) as f64;
        let mut table = ReportTable::new(format!("{}, schedules: m = {m}", model.name()));
        for (index, candidate) in candidates.iter().enumerate() {
            let (first, own) = (&costs[0].seconds, &costs[index].seconds);
            let over = first.over(own);
            let promised = promises[0] / promises[index];
            table.row([
                cell("schedule", "schedule", 0, candidate.name),
                cell("samples_per_second", "samples/s", 1, samples / own.median()),
                cell("spread_percent", "±%", 1, 100.0 * own.spread()),
                cell("step_ms", "step ms", 1, 1e3 * own.median()),
                cell("promise_ms", "promise ms", 1, 1e3 * promises[index]),
                cell("over_1f1b", "× 1f1b", 3, over.median()),
                cell("over_1f1b_spread_percent", "±%", 1, 100.0 * over.spread()),
                cell("promised_over_1f1b", "promised", 3, promised),
                cell("kept", "kept", 0, kept(model, &plans[index])?),
            ]);
        }
        report.table(table);
    }
    Ok(())
}

struct Candidate {
    name: &'static str,
    chunks: usize,
    schedule: Schedule,
}

impl Candidate {
    fn promise(&self, passes: &[StagePasses]) -> Result<f64, Failure> {
        let mut actions = self.schedule.workers().iter().flatten();
        let has_halves = actions.any(|action| action.pass == Pass::InputGradient);
        let mut costs = Costs::uniform(passes.len(), 0.0, 0.0, 0.0);
        costs.stages = passes.iter().map(|p| stage_costs(p, has_halves)).collect();
        Ok(self.schedule.simulate(&costs)?.makespan())
    }
}

fn candidates(m: usize) -> Result<Vec<Candidate>, Failure> {
    let by = |rule: Rule, chunks| -> Result<_, Failure> {
        let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
        Ok(Candidate {
            name: rule.name(),
            chunks,
            schedule: scheduler.schedule(chunks * WORKERS, m)?,
        })
    };
    let whole = by(Rule::OneForwardOneBackward, 1)?;
    let halved = Candidate {
        name: "1f1b-iw",
        chunks: 1,
        schedule: in_halves(&whole.schedule)?,
    };
    Ok(vec![
        whole,
        halved,
        by(Rule::ZeroBubbleH1, 1)?,
        by(Rule::ZeroBubbleH2, 1)?,
        by(Rule::Interleaved, 2)?,
        by(Rule::ZeroBubbleV, 2)?,
    ])
}

/// The same schedule with each backward pass in halves, one right after the other.
fn in_halves(schedule: &Schedule) -> Result<Schedule, Failure> {
    let halves = |action: &Action| {
        let half = |pass| Action::new(action.stage, pass, action.micro_batch);
        match action.pass {
            Pass::Backward => vec![half(Pass::InputGradient), half(Pass::WeightGradient)],
            _ => vec![*action],
        }
    };
    let workers = schedule.workers().iter();
    let workers = workers.map(|actions| actions.iter().flat_map(halves).collect());
    Ok(Schedule::new(workers.collect())?)
}

/// The seconds of a stage's passes for a micro-batch.
type StagePasses = HashMap<SpanKind, Seconds>;

fn median(passes: &StagePasses, kind: SpanKind) -> f64 {
    passes.get(&kind).map_or(f64::NAN, Seconds::median)
}

fn stage_costs(passes: &StagePasses, has_halves: bool) -> StageCosts {
    let forward = median(passes, SpanKind::Forward);
    let (input, weight) = if has_halves {
        let weight = median(passes, SpanKind::WeightGradient);
        (median(passes, SpanKind::InputGradient), weight)
    } else {
        (median(passes, SpanKind::Backward), 0.0)
    };
    StageCosts {
        forward,
        quiet: forward,
        input,
        weight,
        ..StageCosts::default()
    }
}

/// Runs one micro-batch through all stages on one worker, whole and in halves in turn.
fn passes(
    model: &dyn BenchModel,
    cut: &[usize],
    rounds: usize,
) -> Result<Vec<StagePasses>, Failure> {
    let stages = cut.len();
    let forward = (0..stages).map(|stage| Action::forward(stage, 0));
    let backward = (0..stages).rev().map(|stage| Action::backward(stage, 0));
    let whole = Schedule::new(vec![forward.chain(backward).collect()])?;
    let halves = in_halves(&whole)?;
    let turns = [whole, halves].map(|schedule| {
        model.piped(&PipedSettings {
            given: Some(schedule),
            ..PipedSettings::new(cut.to_vec(), 1)
        })
    });
    let mut found = vec![StagePasses::default(); stages];
    let mut turns = turns.into_iter().collect::<Result<Vec<_>, _>>()?;
    for round in 0..2 * rounds + 2 {
        for piped in &mut turns {
            let timeline = piped.step()?.timeline;
            // The first round warms up.
            let spans = timeline.workers.iter().flatten().filter(|_| round > 0);
            for span in spans {
                if let Some(action) = span.action {
                    let seconds = found[action.stage].entry(span.kind).or_default();
                    seconds.0.push(span.length().as_secs_f64());
                }
            }
        }
    }
    Ok(found)
}

/// The most micro-batches for which each stage kept what gradients of weights need.
fn kept(model: &dyn BenchModel, plan: &PipedSettings) -> Result<String, Failure> {
    let held = model.piped(plan)?.step()?.held;
    let kept = held.iter().map(|held| held.weight_contexts.to_string());
    Ok(kept.collect::<Vec<_>>().join(" "))
}

fn stages_table(model: &dyn BenchModel, cut: &[usize], passes: &[StagePasses]) -> ReportTable {
    let (name, shape, samples) = (model.name(), model.shape().describe(), model.samples());
    let mut table = ReportTable::new(format!(
        "{name}, stages: {shape}, {samples} samples a micro-batch, cut {cut:?}"
    ));
    for (stage, passes) in passes.iter().enumerate() {
        let ms = |kind| 1e3 * median(passes, kind);
        table.row([
            cell("stage", "stage", 0, stage),
            cell("forward_ms", "F", 2, ms(SpanKind::Forward)),
            cell("backward_ms", "B", 2, ms(SpanKind::Backward)),
            cell("input_ms", "I", 2, ms(SpanKind::InputGradient)),
            cell("weight_ms", "W", 2, ms(SpanKind::WeightGradient)),
        ]);
    }
    table
}
