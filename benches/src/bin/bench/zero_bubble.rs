//! Whether backward passes in halves pay: zero-bubble schedules next to 1F1B, and next to what the
//! simulator promises.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench zero-bubble`

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};
use stovepipe::schedule::{
    Action, Costs as Promise, Pass, Rule, RuleOptions, Schedule, Scheduler, Span, SpanKind,
    StageCosts,
};
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, ModelChoice},
    contender::{Work, contend, serve},
    layers::LayerCost,
    measure::{Costs, Seconds, take_turns},
    measured::Measured,
    models::models,
    piped::PipelineSettings,
    report::{Report, Table, column, number},
    threads::compute_alone,
};
use stovepipe_plan::cut_chain;

const WORKERS: usize = 2;

/// Filters of AmoebaNet-D for small images: those of the usual 16 are quick, and leave little to defer.
const FILTERS: usize = 64;

/// Backward passes in halves: zero-bubble schedules next to 1F1B
#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// Numbers of micro-batches
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    micro_batches: Vec<usize>,
    /// Work as one of the configurations, for the program that started this one
    #[arg(long, hide = true)]
    contender: Option<String>,
}

const NOTE: &str = "\
Two workers of a thread each, nothing computed twice. `1f1b-iw` is 1F1B in which the gradient of the
input is sent on before those of the weights are found, and nothing else differs.
stages: seconds of a micro-batch's passes through each stage, on one thread, the other idle. B is a
        whole backward pass, I and W are its halves.
promise: the schedule, played by the simulator with these seconds.
1f1b/it: samples/s over those of 1F1B in the same rounds; promised: the same of the promises.
kept:   most micro-batches for which a stage kept what gradients of weights need.";

pub fn main(mut flags: Flags) -> Result<(), Failure> {
    let arguments = &mut flags.arguments;
    arguments.small_filters.get_or_insert(FILTERS);
    if arguments.model == ModelChoice::All {
        arguments.model = ModelChoice::Amoebanet32;
    }
    if let Some(task) = &flags.contender {
        return serve(&flags.arguments, task);
    }
    let _pool = compute_alone()?;
    let arguments = &flags.arguments;
    let micro_batches = match (flags.micro_batches.is_empty(), arguments.quick) {
        (false, _) => flags.micro_batches.clone(),
        (true, true) => vec![2],
        (true, false) => vec![4, 8],
    };
    let settings = json!({ "arguments": arguments, "micro_batches": micro_batches });
    let mut report = Report::begin("zero_bubble", &settings)?;
    report.note(NOTE);
    for model in models(arguments, 16) {
        let rounds = arguments.rounds(9);
        measure(&*model, &micro_batches, rounds, &mut report)?;
    }
    report.save(&arguments.out)
}

fn measure(
    model: &dyn Measured,
    micro_batches: &[usize],
    rounds: usize,
    report: &mut Report,
) -> Result<(), Failure> {
    let layers = model.layer_costs(rounds)?;
    let layers: Vec<_> = layers.iter().map(LayerCost::total).collect();
    let mut stages = BTreeMap::new();
    for chunks in [1, 2] {
        let cut = cut_chain(&layers, chunks * WORKERS)?;
        let passes = passes(model, &cut, rounds)?;
        report.table(stages_table(model, &cut, &passes));
        stages.insert(chunks, (cut, passes));
    }
    for &m in micro_batches {
        let contenders = contenders(m)?;
        let plan = |contender: &Contender| PipelineSettings {
            given: Some(contender.schedule.clone()),
            ..PipelineSettings::new(stages[&contender.chunks].0.clone(), m)
        };
        let plans: Vec<_> = contenders.iter().map(plan).collect();
        let works = plans.iter().map(|plan| Work::Piped {
            plan: plan.clone(),
            optimizer: false,
        });
        let turns = works.map(|work| contend(model, work));
        let mut turns = turns.collect::<Result<Vec<_>, _>>()?;
        let costs = take_turns(&mut turns, rounds)?;
        let promises = contenders.iter().map(|contender| {
            let passes = &stages[&contender.chunks].1;
            contender.promise(passes)
        });
        let promises = promises.collect::<Result<Vec<_>, _>>()?;
        let mut table = results_table(model, m);
        for (index, contender) in contenders.iter().enumerate() {
            let kept = contexts(model, &plans[index])?;
            let samples = (m * model.samples()) as f64;
            table.row(row(contender, &costs, &promises, index, samples, kept));
        }
        report.table(table);
    }
    Ok(())
}

/// A schedule that takes part.
struct Contender {
    name: &'static str,
    chunks: usize,
    schedule: Schedule,
}

impl Contender {
    fn promise(&self, passes: &[Passes]) -> Result<f64, Failure> {
        let has_halves = (self.schedule.workers().iter().flatten())
            .any(|action| action.pass == Pass::InputGradient);
        let mut costs = Promise::uniform(passes.len(), 0.0, 0.0, 0.0);
        let stages = passes.iter().map(|passes| passes.costs(has_halves));
        costs.stages = stages.collect();
        Ok(self.schedule.simulate(&costs)?.makespan())
    }
}

fn contenders(m: usize) -> Result<Vec<Contender>, Failure> {
    let by = |rule: Rule, chunks| -> Result<_, Failure> {
        let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
        let schedule = scheduler.schedule(chunks * WORKERS, m)?;
        Ok(Contender {
            name: rule.name(),
            chunks,
            schedule,
        })
    };
    let whole = by(Rule::OneForwardOneBackward, 1)?;
    let halved = Contender {
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
    Ok(Schedule::new(
        workers
            .map(|actions| actions.iter().flat_map(halves).collect())
            .collect(),
    )?)
}

/// What the passes of a stage take for a micro-batch.
#[derive(Default)]
struct Passes {
    forward: Seconds,
    backward: Seconds,
    input: Seconds,
    weight: Seconds,
}

impl Passes {
    fn add(&mut self, span: &Span) {
        let seconds = match span.kind {
            SpanKind::Forward => &mut self.forward,
            SpanKind::Backward => &mut self.backward,
            SpanKind::InputGradient => &mut self.input,
            SpanKind::WeightGradient => &mut self.weight,
            SpanKind::Recompute | SpanKind::Update => return,
        };
        seconds.0.push(span.length().as_secs_f64());
    }

    fn costs(&self, has_halves: bool) -> StageCosts {
        let (input, weight) = match has_halves {
            true => (self.input.median(), self.weight.median()),
            false => (self.backward.median(), 0.0),
        };
        StageCosts {
            forward: self.forward.median(),
            quiet: self.forward.median(),
            input,
            weight,
            ..StageCosts::default()
        }
    }
}

/// Runs one micro-batch through all stages on one worker, whole and in halves in turn.
fn passes(model: &dyn Measured, cut: &[usize], rounds: usize) -> Result<Vec<Passes>, Failure> {
    let stages = cut.len();
    let forward = (0..stages).map(|stage| Action::forward(stage, 0));
    let backward = (0..stages).rev().map(|stage| Action::backward(stage, 0));
    let whole = Schedule::new(vec![forward.chain(backward).collect()])?;
    let halves = in_halves(&whole)?;
    let turns = [whole, halves].map(|schedule| {
        model.piped(&PipelineSettings {
            given: Some(schedule),
            ..PipelineSettings::new(cut.to_vec(), 1)
        })
    });
    let mut found: Vec<_> = (0..stages).map(|_| Passes::default()).collect();
    let mut turns = turns.into_iter().collect::<Result<Vec<_>, _>>()?;
    for round in 0..2 * rounds + 2 {
        for piped in &mut turns {
            let timeline = piped.step()?.timeline;
            // The first round warms up.
            let spans = timeline.workers.iter().flatten().filter(|_| round > 0);
            for span in spans {
                if let Some(action) = span.action {
                    found[action.stage].add(span);
                }
            }
        }
    }
    Ok(found)
}

/// The most micro-batches for which each stage kept what gradients of weights need.
fn contexts(model: &dyn Measured, plan: &PipelineSettings) -> Result<String, Failure> {
    let held = model.piped(plan)?.step()?.held;
    let kept = held.iter().map(|held| held.weight_contexts.to_string());
    Ok(kept.collect::<Vec<_>>().join(" "))
}

fn stages_table(model: &dyn Measured, cut: &[usize], passes: &[Passes]) -> Table {
    let title = format!(
        "{}, stages: {}, {} samples a micro-batch, cut {cut:?}",
        model.name(),
        model.shape().describe(),
        model.samples()
    );
    let columns = [
        column("stage", "stage", 0),
        column("forward_ms", "F", 2),
        column("backward_ms", "B", 2),
        column("input_ms", "I", 2),
        column("weight_ms", "W", 2),
    ];
    let mut table = Table::new(title, columns);
    for (stage, passes) in passes.iter().enumerate() {
        let ms = |seconds: &Seconds| number(1e3 * seconds.median());
        table.row(json!([
            stage,
            ms(&passes.forward),
            ms(&passes.backward),
            ms(&passes.input),
            ms(&passes.weight),
        ]));
    }
    table
}

fn results_table(model: &dyn Measured, micro_batches: usize) -> Table {
    let columns = [
        column("schedule", "schedule", 0),
        column("samples_per_second", "samples/s", 1),
        column("spread_percent", "±%", 1),
        column("step_ms", "step ms", 1),
        column("promise_ms", "promise ms", 1),
        column("over_1f1b", "× 1f1b", 3),
        column("over_1f1b_spread_percent", "±%", 1),
        column("promised_over_1f1b", "promised", 3),
        column("kept", "kept", 0),
    ];
    let title = format!("{}, schedules: m = {micro_batches}", model.name());
    Table::new(title, columns)
}

fn row(
    contender: &Contender,
    costs: &[Costs],
    promises: &[f64],
    index: usize,
    samples: f64,
    kept: String,
) -> Value {
    let (first, own) = (&costs[0].seconds, &costs[index].seconds);
    let over = first.over(own);
    json!([
        contender.name,
        number(samples / own.median()),
        number(100.0 * own.spread()),
        number(1e3 * own.median()),
        number(1e3 * promises[index]),
        number(over.median()),
        number(100.0 * over.spread()),
        number(promises[0] / promises[index]),
        kept,
    ])
}
