//! The pipeline against its limit: one and two stages of a thread each, next to what one and two
//! independent copies of a plain Burn loop reach with the same micro-batches in the same minutes.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench limit`

use clap::Args;
use serde_json::json;
use stovepipe::{prelude::Recompute, schedule::Rule};
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    contender::{Work, contend, serve},
    layers::{LayerCost, cut_in_two},
    limit::{StageCost, share_of_copies},
    measure::{Costs, take_turns},
    measured::Measured,
    models::models,
    piped::PipelineSettings,
    report::{Report, Table, column, number},
    threads::compute_alone,
};

/// The pipeline against its limit: stages, micro-batches, schedules, recomputation
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
copies: samples/s of K independent plain Burn loops at once, one thread each, on the same m
        micro-batches with one backward pass each and gradients accumulated; K = number of stages.
limit:  m·K / (m + K − 1) / K × copies: equal stages, nothing computed twice, nothing lost.
limit+: the same for the work that the mode asks for: the schedule is played with equal stages,
        forward f/K, backward b/K, and f/K + b/K where the forward pass is computed again (f and b
        are the shares of forward and backward measured layer by layer); m·(f + b)/K over the
        length of that, × copies. Under GPipe with `always` this is limit × (f + b) / (2f + b).
limitc: like limit+, but with the measured shares of the two stages of this cut, which differ.
processor: seconds that threads had a processor, over those of one plain loop for as much work. It
        leaves out waiting, the bubble and other programs: what is above 1 is more work, or slower.
Schedules and modes that come to the very same actions are measured once, under the first name.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    if let Some(task) = &flags.contender {
        return serve(&flags.arguments, task);
    }
    let _pool = compute_alone()?;
    let arguments = &flags.arguments;
    let micro_batches = match (flags.micro_batches.is_empty(), arguments.quick) {
        (false, _) => flags.micro_batches.clone(),
        (true, true) => vec![1, 2],
        (true, false) => vec![1, 2, 4, 8, 16, 32],
    };
    let settings = json!({ "arguments": arguments, "micro_batches": micro_batches });
    let mut bench = Limit {
        report: Report::begin("limit", &settings)?,
        rounds: arguments.rounds(5),
        micro_batches,
    };
    bench.report.note(NOTE);
    for model in models(arguments, 16) {
        bench.measure(&*model)?;
    }
    bench.report.save(&arguments.out)
}

struct Limit {
    report: Report,
    rounds: usize,
    micro_batches: Vec<usize>,
}

impl Limit {
    fn measure(&mut self, model: &dyn Measured) -> Result<(), Failure> {
        let costs = model.layer_costs(2 * self.rounds + 1)?;
        let cut = cut_in_two(&costs.iter().map(LayerCost::total).collect::<Vec<_>>())?;
        let shares = self.show_cut(model, &costs, &cut);
        let plans = self.plans(&cut, costs.len())?;
        let copies: Vec<_> = self.copies_needed(&plans);
        let (of_plans, of_copies) = self.races(model, &plans, &copies)?;
        let mut table = results_table(model);
        let rival = |stages, plan: &PipelineSettings| {
            let wanted = (stages, plan.micro_batches);
            let found = copies.iter().position(|&copies| copies == wanted);
            found.map(|index| &of_copies[index])
        };
        for (plan, ours) in plans.iter().zip(&of_plans) {
            let rivals = (rival(1, plan), rival(plan.cut.len(), plan));
            if let (Some(one), Some(all)) = rivals {
                let samples = (plan.micro_batches * model.samples()) as f64;
                table.row(result_row(plan, samples, [ours, one, all], &shares)?);
            }
        }
        self.report.table(table);
        Ok(())
    }
}

impl Limit {
    /// Prints where the model is cut. Returns the costs of the stages: of the whole, and of the two.
    fn show_cut(
        &mut self,
        model: &dyn Measured,
        costs: &[LayerCost],
        cut: &[usize],
    ) -> Vec<Vec<StageCost>> {
        let stage = |layers: &[LayerCost]| StageCost {
            forward: layers.iter().map(|layer| layer.taped.median()).sum(),
            backward: layers.iter().map(|layer| layer.backward.median()).sum(),
        };
        let (first, second) = costs.split_at(cut[0]);
        let shares = vec![vec![stage(costs)], vec![stage(first), stage(second)]];
        let title = format!(
            "{}: {}, {} samples a micro-batch; best cut in two {cut:?}",
            model.name(),
            model.shape().describe(),
            model.samples()
        );
        let columns = [
            column("stage", "stage", 0),
            column("layers", "layers", 0),
            column("forward_ms", "forward ms", 2),
            column("backward_ms", "backward ms", 2),
            column("share", "share", 3),
        ];
        let mut table = Table::new(title, columns);
        let whole: f64 = costs.iter().map(LayerCost::total).sum();
        for (index, (cost, layers)) in shares[1].iter().zip(cut).enumerate() {
            let StageCost { forward, backward } = *cost;
            let share = number((forward + backward) / whole);
            let [forward, backward] = [forward, backward].map(|s| number(s * 1e3));
            table.row(json!([index, layers, forward, backward, share]));
        }
        self.report.table(table);
        shares
    }

    /// All plans that differ in what is done.
    fn plans(&self, cut: &[usize], layers: usize) -> Result<Vec<PipelineSettings>, Failure> {
        let mut plans = Vec::new();
        let mut seen = Vec::new();
        for stages in [vec![layers], cut.to_vec()] {
            for &micro_batches in &self.micro_batches {
                for (schedule, recompute) in modes() {
                    let plan = PipelineSettings {
                        schedule,
                        recompute,
                        ..PipelineSettings::new(stages.clone(), micro_batches)
                    };
                    let work = work(&plan)?;
                    if !seen.contains(&work) {
                        seen.push(work);
                        plans.push(plan);
                    }
                }
            }
        }
        Ok(plans)
    }

    /// How many copies, with how many micro-batches.
    fn copies_needed(&self, plans: &[PipelineSettings]) -> Vec<(usize, usize)> {
        let stages = plans.iter().map(|plan| plan.cut.len()).max().unwrap_or(1);
        let counts = 1..=stages;
        counts
            .flat_map(|count| self.micro_batches.iter().map(move |&m| (count, m)))
            .collect()
    }

    /// A race for each number of micro-batches: all at once would not fit into memory.
    fn races(
        &self,
        model: &dyn Measured,
        plans: &[PipelineSettings],
        copies: &[(usize, usize)],
    ) -> Result<(Vec<Costs>, Vec<Costs>), Failure> {
        let mut of_plans = vec![Costs::default(); plans.len()];
        let mut of_copies = vec![Costs::default(); copies.len()];
        for &micro_batches in &self.micro_batches {
            let own = |index: &usize| plans[*index].micro_batches == micro_batches;
            let own_plans: Vec<_> = (0..plans.len()).filter(own).collect();
            let own = |index: &usize| copies[*index].1 == micro_batches;
            let own_copies: Vec<_> = (0..copies.len()).filter(own).collect();
            let racing: Vec<_> = own_plans.iter().map(|&i| plans[i].clone()).collect();
            let rivals: Vec<_> = own_copies.iter().map(|&i| copies[i]).collect();
            let (found, found_rivals) = self.race(model, &racing, &rivals)?;
            own_plans
                .into_iter()
                .zip(found)
                .for_each(|(i, costs)| of_plans[i] = costs);
            let pairs = own_copies.into_iter().zip(found_rivals);
            pairs.for_each(|(i, costs)| of_copies[i] = costs);
        }
        Ok((of_plans, of_copies))
    }

    /// Lets pipelines and copies take turns.
    fn race(
        &self,
        model: &dyn Measured,
        plans: &[PipelineSettings],
        copies: &[(usize, usize)],
    ) -> Result<(Vec<Costs>, Vec<Costs>), Failure> {
        let piped = plans.iter().cloned().map(|plan| Work::Piped {
            plan,
            optimizer: false,
        });
        let copied = copies.iter().map(|&(count, micro_batches)| Work::Copies {
            count,
            micro_batches,
        });
        let turns = piped.chain(copied).map(|work| contend(model, work));
        let mut turns = turns.collect::<Result<Vec<_>, _>>()?;
        let mut of_plans = take_turns(&mut turns, self.rounds)?;
        let of_copies = of_plans.split_off(plans.len());
        Ok((of_plans, of_copies))
    }
}

fn modes() -> impl Iterator<Item = (Rule, Recompute)> {
    let schedules = [Rule::GPipe, Rule::OneForwardOneBackward];
    let modes = [Recompute::Never, Recompute::ExceptLast, Recompute::Always];
    schedules
        .into_iter()
        .flat_map(move |schedule| modes.into_iter().map(move |mode| (schedule, mode)))
}

/// What a plan comes to: its actions, and which of them are computed twice.
fn work(plan: &PipelineSettings) -> Result<(String, Vec<bool>), Failure> {
    let schedule = plan.actions()?;
    let twice = (0..schedule.stages())
        .flat_map(|stage| (0..plan.micro_batches).map(move |m| (stage, m)))
        .map(|(stage, m)| plan.recomputes(&schedule, stage, m))
        .collect();
    Ok((schedule.to_string(), twice))
}

fn results_table(model: &dyn Measured) -> Table {
    let columns = [
        column("stages", "K", 0),
        column("micro_batches", "m", 0),
        column("schedule", "schedule", 0),
        column("recompute", "recompute", 0),
        column("samples_per_second", "samples/s", 1),
        column("spread_percent", "±%", 1),
        column("over_plain", "× plain", 2),
        column("processor_over_plain", "processor", 3),
        column("copies_samples_per_second", "copies", 1),
        column("limit_samples_per_second", "limit", 1),
        column("of_limit", "of limit", 3),
        column("limit_with_recompute_samples_per_second", "limit+", 1),
        column("of_limit_with_recompute", "of limit+", 3),
        column("limit_of_cut_samples_per_second", "limitc", 1),
        column("of_limit_of_cut", "of limitc", 3),
    ];
    Table::new(format!("{}: samples/s", model.name()), columns)
}

/// The costs are the pipeline's, of one copy, and of as many copies as there are stages.
fn result_row(
    plan: &PipelineSettings,
    samples: f64,
    [ours, one, all]: [&Costs; 3],
    shares: &[Vec<StageCost>],
) -> Result<serde_json::Value, Failure> {
    let stages = plan.cut.len();
    let [rate, plain, copies] = [ours, one, all].map(|costs| samples / costs.seconds.median());
    let processor = ours.processor.median() / one.processor.median();
    let equal = vec![shares[0][0]; stages];
    let limit = copies * share_of_copies(plan, &equal, false)?;
    let with_recompute = copies * share_of_copies(plan, &equal, true)?;
    let of_cut = copies * share_of_copies(plan, &shares[stages - 1], true)?;
    let [limit, with_recompute, of_cut] =
        [limit, with_recompute, of_cut].map(|limit| [number(limit), number(rate / limit)]);
    Ok(json!([
        stages,
        plan.micro_batches,
        plan.schedule_name(),
        plan.recompute.to_string(),
        number(rate),
        number(100.0 * ours.seconds.spread()),
        number(rate / plain),
        number(processor),
        number(copies),
        limit[0],
        limit[1],
        with_recompute[0],
        with_recompute[1],
        of_cut[0],
        of_cut[1],
    ]))
}
