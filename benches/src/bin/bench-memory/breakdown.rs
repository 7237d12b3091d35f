//! Where the time and the memory of a step go.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory breakdown`

use stovepipe_benches::{
    Failure,
    arguments::MemoryArguments,
    bench_model::BenchModel,
    contender::ContenderWork,
    layers::{LayerCost, cut_in_two, totals},
    learning::LoopKind,
    measure::{count, take_turns},
    models::models,
    piped::PipedSettings,
    report::{BenchReport, Cell, ReportTable, cell},
    step_times::{StepTimes, step_times},
};

const NOTE: &str = "\
All times are in milliseconds, of threads that compute alone. The allocator counts, which costs all
of them a little.
layers:   one micro-batch through each layer by itself. `tape` is forward with a tape minus forward
          without one: the cost of autodiff in the forward pass (negative where it is noise).
fixed:    the same graphs where there is almost nothing to compute (one sample, maps that end at
          1×1, sequences of one token). A step's time there is bookkeeping, allocation, the start
          of kernels and a little computing: an upper bound of the overhead at real size. `engine`
          is the engine's time minus the plain loop's.
step:     one mini-batch through stages, mean of several. waiting: from the moment a worker was free
          until its next input had been computed, and after its last pass. engine: the rest of the
          step (copies of modules, transfers, collecting results). work/alone: forward, recompute
          and backward over the layers' own times in the same rounds, m times. A transfer between
          stages on one device moves a reference: see boundary.
boundary: what crosses the cut forward for one micro-batch (gradients back are at most as many), the
          time of its transfer on one device, and the time of a copy of as many bytes.
memory:   bytes counted by the allocator, in MiB, each row in its own process. resting: allocated
          between mini-batches: parameters, statistics, the batch, buffers of threads. peak: the
          peak of a second mini-batch above that, with its gradients, before there was an optimizer.
          optimizer: AdamW's state. held: inputs + activations of each stage, in micro-batches, by
          the engine's report.";

pub fn main(flags: MemoryArguments) -> Result<(), Failure> {
    let mut bench = Breakdown {
        report: BenchReport::begin("breakdown", &flags)?,
        flags,
    };
    bench.report.note(NOTE);
    for model in models(&bench.flags.arguments, 16) {
        bench.measure(&*model)?;
    }
    bench.report.save(&bench.flags.arguments.out)
}

struct Breakdown {
    report: BenchReport,
    flags: MemoryArguments,
}

impl Breakdown {
    fn measure(&mut self, model: &dyn BenchModel) -> Result<(), Failure> {
        let costs = model.layer_costs(self.flags.arguments.rounds(21))?;
        self.layers(model, &costs);
        self.fixed(model)?;
        let cut = cut_in_two(&totals(&costs))?;
        let m = self.flags.micro_batches;
        let mut plans = vec![PipedSettings::new(vec![costs.len()], m)];
        plans.extend(PipedSettings::modes(&cut, m));
        self.steps(model, &plans)?;
        self.boundary(model, cut[0])?;
        self.memory(model, &plans)
    }

    fn layers(&mut self, model: &dyn BenchModel, costs: &[LayerCost]) {
        let (name, shape, samples) = (model.name(), model.shape().describe(), model.samples());
        let mut table = ReportTable::new(format!("{name}, layers: {shape}, {samples} samples"));
        let whole: f64 = totals(costs).iter().sum();
        let mut sums = [0.0; 3];
        for (index, cost) in costs.iter().enumerate() {
            let times = [&cost.quiet, &cost.taped, &cost.backward].map(|s| s.median());
            sums = std::array::from_fn(|i| sums[i] + times[i]);
            let (index, output) = (Some(index), Some(cost.output_bytes as f64 / 1024.0));
            let share = 100.0 * cost.total() / whole;
            let (name, parameters) = (&cost.name, cost.parameters);
            table.row(layer_row(index, name, parameters, output, times, share));
        }
        let parameters = costs.iter().map(|cost| cost.parameters).sum();
        table.row(layer_row(None, "all", parameters, None, sums, 100.0));
        self.report.table(table);
    }

    /// The cost of a step apart from computing.
    fn fixed(&mut self, model: &dyn BenchModel) -> Result<(), Failure> {
        let mut table = ReportTable::new(format!("{}, fixed", model.name()));
        let smallest = self.fixed_times(&*model.smallest())?;
        let real = self.fixed_times(model)?;
        for ((name, smallest), (_, real)) in smallest.into_iter().zip(real) {
            table.row([
                cell("work", "a micro-batch", 0, name),
                cell("least_ms", "least size", 3, 1e3 * smallest),
                cell("real_ms", "real size", 3, 1e3 * real),
                cell("share_percent", "share %", 1, 100.0 * smallest / real),
            ]);
        }
        self.report.table(table);
        Ok(())
    }

    fn fixed_times(&self, model: &dyn BenchModel) -> Result<Vec<(&'static str, f64)>, Failure> {
        let arguments = &self.flags.arguments;
        let (minimum, rounds) = (arguments.turn() / 4, arguments.rounds(11));
        let costs = model.layer_costs(rounds)?;
        let sum = |of: fn(&LayerCost) -> f64| costs.iter().map(of).sum::<f64>();
        let m = self.flags.micro_batches;
        let plain = |micro_batches, optimizer| {
            let work = ContenderWork::Plain {
                micro_batches,
                optimizer,
            };
            work.prepare(model, minimum)
        };
        let piped = |m, optimizer| {
            let plan = PipedSettings::new(vec![costs.len()], m);
            ContenderWork::Piped { plan, optimizer }.prepare(model, minimum)
        };
        let mut turns = [
            plain(1, false)?,
            plain(m, false)?,
            plain(1, true)?,
            piped(1, false)?,
            piped(m, false)?,
            piped(1, true)?,
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

    /// The times of workers in a step, next to the layers' own times in the same rounds.
    fn steps(&mut self, model: &dyn BenchModel, plans: &[PipedSettings]) -> Result<(), Failure> {
        let mut runs = Vec::new();
        for plan in plans {
            let mut piped = model.piped(plan)?;
            piped.add_optimizer();
            runs.push((piped, vec![Vec::new(); plan.cut.len()]));
        }
        let mut alone = model.layer_costs(1)?;
        for _ in 0..self.flags.arguments.rounds(7) {
            for (piped, stages) in &mut runs {
                piped.step()?; // warms up
                count(self.flags.arguments.turn(), || {
                    let done = piped.step()?;
                    let times = step_times(&done.timeline, done.passes);
                    (stages.iter_mut().zip(times)).for_each(|(all, own)| all.push(own));
                    Ok(())
                })?;
            }
            let more = model.layer_costs(3)?;
            alone.iter_mut().zip(more).for_each(|(a, b)| a.extend(b));
        }
        let (name, m) = (model.name(), self.flags.micro_batches);
        let mut table = ReportTable::new(format!("{name}, step: m = {m}"));
        for (plan, (_, stages)) in plans.iter().zip(runs) {
            let mut first = 0;
            for (stage, (times, layers)) in stages.iter().zip(&plan.cut).enumerate() {
                let own = &alone[first..first + layers];
                first += layers;
                table.row(step_row(plan, stage, StepTimes::mean(times), own)?);
            }
        }
        self.report.table(table);
        Ok(())
    }

    fn boundary(&mut self, model: &dyn BenchModel, after: usize) -> Result<(), Failure> {
        let mut table = ReportTable::new(format!("{}, boundary", model.name()));
        let boundary = model.boundary(after)?;
        table.row([
            cell("after_layers", "after layers", 0, after),
            cell("kib", "KiB", 1, boundary.bytes as f64 / 1024.0),
            cell("hand_over_us", "transfer µs", 2, 1e6 * boundary.transfer),
            cell("copy_us", "a copy µs", 1, 1e6 * boundary.copy),
        ]);
        self.report.table(table);
        Ok(())
    }

    /// Peaks, each in its own process: the allocator's peak cannot be reset.
    fn memory(&mut self, model: &dyn BenchModel, plans: &[PipedSettings]) -> Result<(), Failure> {
        let (name, micro_batches) = (model.name(), self.flags.micro_batches);
        let mut table = ReportTable::new(format!("{name}, memory: m = {micro_batches}"));
        let plain = LoopKind::Plain { micro_batches };
        let pipelines = plans.iter().cloned().map(LoopKind::Piped);
        for subject in std::iter::once(plain).chain(pipelines) {
            let peak = subject.measure_in_child(model)?;
            let (stages, schedule, recompute) = match &subject {
                LoopKind::Plain { .. } => (1, "plain loop", None),
                LoopKind::Piped(plan) => {
                    let recompute = Some(plan.recompute.to_string());
                    (plan.cut.len(), plan.schedule.name(), recompute)
                }
            };
            let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
            table.row([
                cell("stages", "K", 0, stages),
                cell("schedule", "schedule", 0, schedule),
                cell("recompute", "recompute", 0, recompute),
                cell("parameters_mib", "parameters", 2, mib(peak.parameters)),
                cell("resting_mib", "resting", 2, mib(peak.resting)),
                cell("optimizer_mib", "optimizer", 2, mib(peak.optimizer)),
                cell("peak_mib", "peak", 2, mib(peak.peak)),
                cell("held", "held", 0, peak.held),
            ]);
        }
        self.report.table(table);
        Ok(())
    }
}

/// Seconds are those of a forward pass without a tape, one with a tape, and a backward pass.
fn layer_row(
    index: Option<usize>,
    name: &str,
    parameters: usize,
    output: Option<f64>,
    [quiet, taped, backward]: [f64; 3],
    share: f64,
) -> [Cell; 9] {
    [
        cell("layer", "layer", 0, index),
        cell("name", "name", 0, name),
        cell("parameters", "parameters", 0, parameters),
        cell("output_kib", "output KiB", 1, output),
        cell("forward_ms", "forward", 3, 1e3 * quiet),
        cell("taped_ms", "with tape", 3, 1e3 * taped),
        cell("backward_ms", "backward", 3, 1e3 * backward),
        cell("tape_ms", "tape", 3, 1e3 * (taped - quiet)),
        cell("share_percent", "share %", 1, share),
    ]
}

fn step_row(
    plan: &PipedSettings,
    stage: usize,
    own: StepTimes,
    layers: &[LayerCost],
) -> Result<[Cell; 12], Failure> {
    let m = plan.micro_batches as f64;
    let alone = m * totals(layers).iter().sum::<f64>();
    // A recomputed pass runs once without a tape and once with one.
    let quiet: f64 = layers.iter().map(|layer| layer.quiet.median()).sum();
    let schedule = plan.actions()?;
    let recomputed = (0..plan.micro_batches).filter(|&m| plan.recomputes(&schedule, stage, m));
    let alone = alone + recomputed.count() as f64 * quiet;
    let work = own.forward + own.recompute + own.backward;
    Ok([
        cell("stages", "K", 0, plan.cut.len()),
        cell("schedule", "schedule", 0, plan.schedule.name()),
        cell("recompute", "recompute", 0, plan.recompute.to_string()),
        cell("stage", "stage", 0, stage),
        cell("step_ms", "step", 2, 1e3 * own.step()),
        cell("forward_ms", "forward", 2, 1e3 * own.forward),
        cell("recompute_ms", "recomp.", 2, 1e3 * own.recompute),
        cell("backward_ms", "backward", 2, 1e3 * own.backward),
        cell("waiting_ms", "waiting", 2, 1e3 * own.waiting),
        cell("engine_ms", "engine", 2, 1e3 * own.engine),
        cell("work_over_alone", "work/alone", 3, work / alone),
        cell("update_ms", "AdamW", 2, 1e3 * own.update),
    ])
}
