//! Where the time and the memory of a step go.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory breakdown`

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use stovepipe::{prelude::Recompute, schedule::Rule};
use stovepipe_benches::{
    Failure,
    account::{Account, accounts},
    arguments::Arguments,
    layers::{LayerCost, cut_in_two},
    measure::{Turn, count, repeat, take_turns},
    measured::Measured,
    memory::{Counter, Peak, Subject},
    models::models,
    piped::{PipedLoop, PipelineSettings},
    report::{Report, Table, column, number},
    threads::compute_alone,
};

/// Where the time and the memory of a step go
#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// Micro-batches
    #[arg(long, value_name = "N", default_value_t = 8)]
    micro_batches: usize,
    /// What a child process is to measure the memory of
    #[arg(long, hide = true)]
    memory_of: Option<String>,
}

const NOTE: &str = "\
All times are of threads that compute alone, and milliseconds. The allocator counts, which costs a
little everywhere alike.
layers:   one micro-batch through each layer by itself. `tape` is forward with a tape less forward
          without one: what autodiff adds to the forward pass (negative where it is noise).
fixed:    the same graphs where there is next to nothing to compute (one sample, maps that end at
          1×1, sequences of one token). What a step takes there is bookkeeping, allocation and the
          start of kernels, and still a little computing: an upper bound of what it costs at real
          size that is not computing. `engine` is what the engine takes more than the plain loop.
step:     one mini-batch through stages, mean of several. waiting: from the moment a worker was free
          until its next input had been computed, and after its last pass. engine: the rest of the
          step (copies of modules, handing over, gathering). work/alone: forward, recompute and
          backward over what the layers take by themselves in the same rounds, m times. Handing over between
          stages on one device moves a reference: see boundary.
boundary: what crosses the cut forward for one micro-batch (gradients come back, as many at most), how
          long it takes to hand it over on one device, and how long a copy of as many bytes would.
memory:   bytes counted by the allocator, in MiB, each row in a process of its own. resting: what is
          allocated between mini-batches: parameters, statistics, the batch, buffers of threads. peak:
          the most that a second mini-batch allocated above that, gradients among it, before there was
          an optimizer. optimizer: what AdamW keeps. held: inputs + activations of each stage, in micro-batches, by the engine.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    let _pool = compute_alone()?;
    if let Some(subject) = &flags.memory_of {
        let subject: Subject = serde_json::from_str(subject)?;
        return (models(&flags.arguments, 16).iter())
            .try_for_each(|model| show_memory(&subject, &**model));
    }
    let micro_batches = match flags.arguments.quick {
        true => flags.micro_batches.min(2),
        false => flags.micro_batches,
    };
    let settings = json!({ "arguments": flags.arguments, "micro_batches": micro_batches });
    let mut bench = Breakdown {
        report: Report::begin("breakdown", &settings)?,
        arguments: flags.arguments.clone(),
        micro_batches,
    };
    bench.report.note(NOTE);
    for model in models(&flags.arguments, 16) {
        bench.measure(&*model)?;
    }
    bench.report.save(&flags.arguments.out)
}

/// In a child process: the memory of one subject.
fn show_memory(subject: &Subject, model: &dyn Measured) -> Result<(), Failure> {
    let counter = Counter {
        now: || crate::ALLOCATOR.allocated(),
        most: || crate::ALLOCATOR.max_allocated(),
    };
    let peak = subject.measure(model, &counter)?;
    println!("{}", serde_json::to_string(&peak)?);
    Ok(())
}

struct Breakdown {
    report: Report,
    arguments: Arguments,
    micro_batches: usize,
}

impl Breakdown {
    fn measure(&mut self, model: &dyn Measured) -> Result<(), Failure> {
        let costs = model.layer_costs(self.arguments.rounds(21))?;
        self.layers(model, &costs);
        self.fixed(model)?;
        let cut = cut_in_two(&costs.iter().map(LayerCost::total).collect::<Vec<_>>())?;
        let plans = self.plans(&cut, costs.len());
        self.steps(model, &plans)?;
        self.boundary(model, cut[0])?;
        self.memory(model, &plans)
    }
}

fn milliseconds(seconds: f64) -> Value {
    number(1e3 * seconds)
}

impl Breakdown {
    /// Each layer by itself.
    fn layers(&mut self, model: &dyn Measured, costs: &[LayerCost]) {
        let (name, shape, samples) = (model.name(), model.shape().describe(), model.samples());
        let columns = [
            column("layer", "layer", 0),
            column("name", "name", 0),
            column("parameters", "parameters", 0),
            column("output_kib", "output KiB", 1),
            column("forward_ms", "forward", 3),
            column("taped_ms", "with tape", 3),
            column("backward_ms", "backward", 3),
            column("tape_ms", "tape", 3),
            column("share_percent", "share %", 1),
        ];
        let title = format!("{name}, layers: {shape}, {samples} samples");
        let mut table = Table::new(title, columns);
        let whole: f64 = costs.iter().map(LayerCost::total).sum();
        let mut sums = [0.0; 4];
        for (index, cost) in costs.iter().enumerate() {
            let [quiet, taped, backward] =
                [&cost.quiet, &cost.taped, &cost.backward].map(|s| s.median());
            let times = [quiet, taped, backward, taped - quiet];
            sums = std::array::from_fn(|i| sums[i] + times[i]);
            let times = times.map(milliseconds);
            let output = number(cost.output_bytes as f64 / 1024.0);
            let share = number(100.0 * cost.total() / whole);
            table.row(json!([
                index,
                cost.name,
                cost.parameters,
                output,
                times[0],
                times[1],
                times[2],
                times[3],
                share
            ]));
        }
        let parameters: usize = costs.iter().map(|cost| cost.parameters).sum();
        let [quiet, taped, backward, tape] = sums.map(milliseconds);
        table.row(json!([
            null, "all", parameters, null, quiet, taped, backward, tape, 100.0
        ]));
        self.report.table(table);
    }

    /// What a step costs beside computing.
    fn fixed(&mut self, model: &dyn Measured) -> Result<(), Failure> {
        let columns = [
            column("work", "a micro-batch", 0),
            column("least_ms", "least size", 3),
            column("real_ms", "real size", 3),
            column("share_percent", "share %", 1),
        ];
        let mut table = Table::new(format!("{}, fixed", model.name()), columns);
        let least = self.fixed_times(&*model.least())?;
        let real = self.fixed_times(model)?;
        for ((name, least), (_, real)) in least.into_iter().zip(real) {
            let share = number(100.0 * least / real);
            table.row(json!([
                name,
                milliseconds(least),
                milliseconds(real),
                share
            ]));
        }
        self.report.table(table);
        Ok(())
    }

    fn fixed_times(&self, model: &dyn Measured) -> Result<Vec<(&'static str, f64)>, Failure> {
        let (least, rounds) = (self.arguments.turn() / 4, self.arguments.rounds(11));
        let costs = model.layer_costs(rounds)?;
        let sum = |of: fn(&LayerCost) -> f64| costs.iter().map(of).sum::<f64>();
        let m = self.micro_batches;
        let plain = |m| model.plain(m);
        let piped = |m| model.piped(&PipelineSettings::new(vec![costs.len()], m));
        let (mut plain_1, mut plain_m) = (plain(1)?, plain(m)?);
        let (mut piped_1, mut piped_m) = (piped(1)?, piped(m)?);
        let (mut plain_adam, mut piped_adam) = (plain(1)?, piped(1)?);
        plain_adam.add_optimizer();
        piped_adam.add_optimizer();
        let mut turns: [Turn<'_>; 6] = [
            Box::new(|| repeat(least, || plain_1.step())),
            Box::new(|| repeat(least, || plain_m.step())),
            Box::new(|| repeat(least, || plain_adam.step())),
            Box::new(|| repeat(least, || piped_1.step().map(|_| ()))),
            Box::new(|| repeat(least, || piped_m.step().map(|_| ()))),
            Box::new(|| repeat(least, || piped_adam.step().map(|_| ()))),
        ];
        let found = take_turns(&mut turns, rounds)?;
        let of = |index: usize| found[index].seconds.median();
        Ok(vec![
            ("layers: forward, no tape", sum(|cost| cost.quiet.median())),
            ("layers: forward, tape", sum(|cost| cost.taped.median())),
            ("layers: backward", sum(|cost| cost.backward.median())),
            ("plain loop, m = 1", of(0)),
            ("plain loop, m micro-batches, each", of(1) / m as f64),
            ("plain loop: AdamW", of(2) - of(0)),
            ("one stage, m = 1", of(3)),
            ("one stage, m micro-batches, each", of(4) / m as f64),
            ("one stage: AdamW", of(5) - of(3)),
            ("engine: m = 1", of(3) - of(0)),
            ("engine: m micro-batches, each", (of(4) - of(1)) / m as f64),
        ])
    }

    /// One stage, and two with each schedule and mode.
    fn plans(&self, cut: &[usize], layers: usize) -> Vec<PipelineSettings> {
        let m = self.micro_batches;
        let mut plans = vec![PipelineSettings::new(vec![layers], m)];
        for schedule in [Rule::GPipe, Rule::OneForwardOneBackward] {
            for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
                plans.push(PipelineSettings {
                    schedule,
                    recompute,
                    ..PipelineSettings::new(cut.to_vec(), m)
                });
            }
        }
        plans
    }

    /// What workers did in a step, next to what the layers take by themselves in the same rounds.
    fn steps(&mut self, model: &dyn Measured, plans: &[PipelineSettings]) -> Result<(), Failure> {
        let mut runs = Vec::new();
        for plan in plans {
            let mut piped = model.piped(plan)?;
            piped.add_optimizer();
            let sums = vec![Account::default(); plan.cut.len()];
            runs.push((piped, sums, 0.0));
        }
        let mut alone = model.layer_costs(1)?;
        for _ in 0..self.arguments.rounds(7) {
            for (piped, sums, steps) in &mut runs {
                *steps += add_steps(&mut **piped, sums, self.arguments.turn())?;
            }
            let more = model.layer_costs(3)?;
            alone.iter_mut().zip(more).for_each(|(a, b)| a.extend(b));
        }
        let mut table = steps_table(model, self.micro_batches);
        for (plan, (_, sums, steps)) in plans.iter().zip(runs) {
            let mut first = 0;
            for (stage, (sum, layers)) in sums.into_iter().zip(&plan.cut).enumerate() {
                let own = &alone[first..first + layers];
                first += layers;
                table.row(step_row(plan, stage, sum.divided_by(steps), own)?);
            }
        }
        self.report.table(table);
        Ok(())
    }

    /// What crosses the cut.
    fn boundary(&mut self, model: &dyn Measured, after: usize) -> Result<(), Failure> {
        let columns = [
            column("after_layers", "after layers", 0),
            column("kib", "KiB", 1),
            column("hand_over_us", "hand over µs", 2),
            column("copy_us", "a copy µs", 1),
        ];
        let mut table = Table::new(format!("{}, boundary", model.name()), columns);
        table.row(model.boundary(after)?);
        self.report.table(table);
        Ok(())
    }

    /// Peaks, each in a process of its own: the allocator's highest count cannot be set back.
    fn memory(&mut self, model: &dyn Measured, plans: &[PipelineSettings]) -> Result<(), Failure> {
        let columns = [
            column("stages", "K", 0),
            column("schedule", "schedule", 0),
            column("recompute", "recompute", 0),
            column("parameters_mib", "parameters", 2),
            column("resting_mib", "resting", 2),
            column("optimizer_mib", "optimizer", 2),
            column("peak_mib", "peak", 2),
            column("held", "held", 0),
        ];
        let title = format!("{}, memory: m = {}", model.name(), self.micro_batches);
        let mut table = Table::new(title, columns);
        let plain = Subject::PlainLoop {
            micro_batches: self.micro_batches,
        };
        let plans = plans.iter().cloned().map(Subject::Pipeline);
        for subject in std::iter::once(plain).chain(plans) {
            let Peak {
                parameters,
                resting,
                optimizer,
                peak,
                held,
            } = subject.measure_in_child(model.name(), &self.arguments)?;
            let [parameters, resting, optimizer, peak] = [parameters, resting, optimizer, peak]
                .map(|bytes| number(bytes as f64 / f64::from(1 << 20)));
            let [stages, schedule, recompute] = subject.describe();
            table.row(json!([
                stages, schedule, recompute, parameters, resting, optimizer, peak, held
            ]));
        }
        self.report.table(table);
        Ok(())
    }
}

/// One turn: a step that warms up, and steps for at least `least` whose accounts are added up.
fn add_steps(
    piped: &mut dyn PipedLoop,
    sums: &mut [Account],
    least: Duration,
) -> Result<f64, Failure> {
    piped.step()?;
    let (steps, _) = count(least, || {
        let done = piped.step()?;
        let own = accounts(&done.timeline, done.passes);
        sums.iter_mut().zip(own).for_each(|(sum, own)| sum.add(own));
        Ok(())
    })?;
    Ok(steps)
}

fn steps_table(model: &dyn Measured, micro_batches: usize) -> Table {
    let columns = [
        column("stages", "K", 0),
        column("schedule", "schedule", 0),
        column("recompute", "recompute", 0),
        column("stage", "stage", 0),
        column("step_ms", "step", 2),
        column("forward_ms", "forward", 2),
        column("recompute_ms", "recomp.", 2),
        column("backward_ms", "backward", 2),
        column("waiting_ms", "waiting", 2),
        column("engine_ms", "engine", 2),
        column("work_over_alone", "work/alone", 3),
        column("update_ms", "AdamW", 2),
    ];
    let title = format!("{}, step: m = {micro_batches}", model.name());
    Table::new(title, columns)
}

fn step_row(
    plan: &PipelineSettings,
    stage: usize,
    own: Account,
    layers: &[LayerCost],
) -> Result<Value, Failure> {
    let m = plan.micro_batches as f64;
    let alone = m * layers.iter().map(LayerCost::total).sum::<f64>();
    // A pass that is computed twice runs once without a tape and once with one.
    let quiet: f64 = layers.iter().map(|layer| layer.quiet.median()).sum();
    let twice = plan.twice(stage)? as f64 * quiet;
    let work = own.forward + own.recompute + own.backward;
    Ok(json!([
        plan.cut.len(),
        plan.schedule_name(),
        plan.recompute.to_string(),
        stage,
        milliseconds(own.step()),
        milliseconds(own.forward),
        milliseconds(own.recompute),
        milliseconds(own.backward),
        milliseconds(own.waiting),
        milliseconds(own.engine),
        number(work / (alone + twice)),
        milliseconds(own.update),
    ]))
}
