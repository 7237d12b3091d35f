//! The pipeline against its limit: one and two stages of a thread each, next to one and two
//! independent copies of a plain Burn loop with the same micro-batches in the same minutes.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench limit`

use stovepipe_benches::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    layers::{LayerCost, cut_in_two, totals},
    limit::{StageCost, share_of_copies},
    measure::TurnCosts,
    models::models,
    piped::PipedSettings,
    report::{BenchReport, Cell, ReportTable, cell},
};

const NOTE: &str = "\
copies: samples/s of K independent plain Burn loops at once, one thread each, on the same m
        micro-batches with one backward pass each and gradients accumulated; K = number of stages.
limit:  m·K / (m + K − 1) / K × copies: equal stages, no recomputation, no overhead.
limit+: the same with the mode's recomputation: the schedule is simulated with equal stages, forward
        f/K, backward b/K, and f/K + b/K where the forward pass is recomputed (f and b are the
        shares of forward and backward measured layer by layer); m·(f + b)/K over its length,
        × copies. Under GPipe with `always` this is limit × (f + b) / (2f + b).
limitc: like limit+, but with the measured shares of the two stages of this cut, which differ.
processor: processor seconds of all threads over those of one plain loop for as much work. They
        exclude waiting, the bubble and other programs: above 1 there is more or slower work.
Schedules and modes with the same actions are measured once, under the first name.";

pub fn main(flags: SweepArguments) -> Result<(), Failure> {
    let flags = flags.or_micro_batches(&[1, 2], &[1, 2, 4, 8, 16, 32]);
    serve_or_compute_alone(&flags.arguments)?;
    let mut bench = Limit {
        report: BenchReport::begin("limit", &flags)?,
        rounds: flags.arguments.rounds(5),
        micro_batches: flags.micro_batches,
    };
    bench.report.note(NOTE);
    for model in models(&flags.arguments, 16) {
        bench.measure(&*model)?;
    }
    bench.report.save(&flags.arguments.out)
}

struct Limit {
    report: BenchReport,
    rounds: usize,
    micro_batches: Vec<usize>,
}

impl Limit {
    fn measure(&mut self, model: &dyn BenchModel) -> Result<(), Failure> {
        let costs = model.layer_costs(2 * self.rounds + 1)?;
        let cut = cut_in_two(&totals(&costs))?;
        let shares = self.show_cut(model, &costs, &cut);
        let mut table = ReportTable::new(format!("{}: samples/s", model.name()));
        let mut rows = Vec::new();
        // All numbers of micro-batches at once would not fit into memory.
        for &micro_batches in &self.micro_batches {
            let plans = plans(&[vec![costs.len()], cut.clone()], micro_batches)?;
            let (of_plans, of_copies) = self.race(model, &plans, micro_batches)?;
            let samples = (micro_batches * model.samples()) as f64;
            for (plan, ours) in plans.iter().zip(&of_plans) {
                let costs = [ours, &of_copies[0], &of_copies[plan.cut.len() - 1]];
                rows.push((plan.cut.len(), result_row(plan, samples, costs, &shares)?));
            }
        }
        rows.sort_by_key(|(stages, _)| *stages);
        rows.into_iter().for_each(|(_, row)| table.row(row));
        self.report.table(table);
        Ok(())
    }

    /// Prints where the model is cut. Returns the costs of the only stage, and of the two.
    fn show_cut(
        &mut self,
        model: &dyn BenchModel,
        costs: &[LayerCost],
        cut: &[usize],
    ) -> Vec<Vec<StageCost>> {
        let stage = |layers: &[LayerCost]| StageCost {
            forward: layers.iter().map(|layer| layer.taped.median()).sum(),
            backward: layers.iter().map(|layer| layer.backward.median()).sum(),
        };
        let (first, second) = costs.split_at(cut[0]);
        let shares = vec![vec![stage(costs)], vec![stage(first), stage(second)]];
        let (name, shape, samples) = (model.name(), model.shape().describe(), model.samples());
        let mut table = ReportTable::new(format!(
            "{name}: {shape}, {samples} samples a micro-batch; best cut in two {cut:?}"
        ));
        let whole: f64 = totals(costs).iter().sum();
        for (index, (&StageCost { forward, backward }, &layers)) in
            shares[1].iter().zip(cut).enumerate()
        {
            table.row([
                cell("stage", "stage", 0, index),
                cell("layers", "layers", 0, layers),
                cell("forward_ms", "forward ms", 2, 1e3 * forward),
                cell("backward_ms", "backward ms", 2, 1e3 * backward),
                cell("share", "share", 3, (forward + backward) / whole),
            ]);
        }
        self.report.table(table);
        shares
    }

    /// Lets pipelines take turns with one copy of the plain loop, and with one for each stage.
    fn race(
        &self,
        model: &dyn BenchModel,
        plans: &[PipedSettings],
        micro_batches: usize,
    ) -> Result<(Vec<TurnCosts>, Vec<TurnCosts>), Failure> {
        let stages = plans.iter().map(|plan| plan.cut.len()).max().unwrap_or(1);
        let copies = (1..=stages).map(|count| ContenderWork::Copies {
            count,
            micro_batches,
        });
        let works = plans.iter().map(ContenderWork::passes).chain(copies);
        let mut of_plans = race(model, works, self.rounds)?;
        let of_copies = of_plans.split_off(plans.len());
        Ok((of_plans, of_copies))
    }
}

/// All pipelines of these cuts whose actions differ.
fn plans(cuts: &[Vec<usize>], micro_batches: usize) -> Result<Vec<PipedSettings>, Failure> {
    let (mut plans, mut seen) = (Vec::new(), Vec::new());
    let modes = |cut: &Vec<usize>| PipedSettings::modes(cut, micro_batches);
    for plan in cuts.iter().flat_map(modes) {
        let actions = actions(&plan)?;
        if !seen.contains(&actions) {
            seen.push(actions);
            plans.push(plan);
        }
    }
    Ok(plans)
}

/// The actions of a pipeline, and which of them are recomputed.
fn actions(plan: &PipedSettings) -> Result<(String, Vec<bool>), Failure> {
    let schedule = plan.actions()?;
    let recomputed = (0..schedule.stages())
        .flat_map(|stage| (0..plan.micro_batches).map(move |m| (stage, m)))
        .map(|(stage, m)| plan.recomputes(&schedule, stage, m))
        .collect();
    Ok((schedule.to_string(), recomputed))
}

/// The costs are the pipeline's, of one copy, and of as many copies as there are stages.
fn result_row(
    plan: &PipedSettings,
    samples: f64,
    [ours, one, all]: [&TurnCosts; 3],
    shares: &[Vec<StageCost>],
) -> Result<Vec<Cell>, Failure> {
    let stages = plan.cut.len();
    let [rate, plain, copies] = [ours, one, all].map(|costs| samples / costs.seconds.median());
    let processor = ours.processor.median() / one.processor.median();
    let equal = vec![shares[0][0]; stages];
    let limit = copies * share_of_copies(plan, &equal, false)?;
    let plus = copies * share_of_copies(plan, &equal, true)?;
    let of_cut = copies * share_of_copies(plan, &shares[stages - 1], true)?;
    Ok(vec![
        cell("stages", "K", 0, stages),
        cell("micro_batches", "m", 0, plan.micro_batches),
        cell("schedule", "schedule", 0, plan.schedule.name()),
        cell("recompute", "recompute", 0, plan.recompute.to_string()),
        cell("samples_per_second", "samples/s", 1, rate),
        cell("spread_percent", "±%", 1, 100.0 * ours.seconds.spread()),
        cell("over_plain", "× plain", 2, rate / plain),
        cell("processor_over_plain", "processor", 3, processor),
        cell("copies_samples_per_second", "copies", 1, copies),
        cell("limit_samples_per_second", "limit", 1, limit),
        cell("of_limit", "of limit", 3, rate / limit),
        cell("limit_with_recompute_samples_per_second", "limit+", 1, plus),
        cell("of_limit_with_recompute", "of limit+", 3, rate / plus),
        cell("limit_of_cut_samples_per_second", "limitc", 1, of_cut),
        cell("of_limit_of_cut", "of limitc", 3, rate / of_cut),
    ])
}
