//! How much of a reduction between replicas is hidden behind the backward pass, over slow links.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench overlap`

use clap::Args;
use serde::Serialize;
use stovepipe::{
    plan::{LinkLevel, Machine, OptimizerState, Profile, Setup},
    schedule::{Link, Recompute, SpanKind, WeightPolicy},
};
use stovepipe_benches::{
    Failure,
    arguments::SweepArguments,
    bench_model::BenchModel,
    contender::{ContenderWork, race, serve_or_compute_alone},
    measure::{Seconds, mean},
    models::model,
    piped::{Network, PipedSettings},
    ranks,
    recipe::ModelShape,
    report::{BenchReport, ReportTable, cell},
};

const REPLICAS: usize = 2;

const NOTE: &str = "\
Two replicas, each stage of each in a rank of its own, which is a thread: forward and backward. A link
between two ranks takes its time for each message, in each direction; free: with links that take none.
Micro-batches are so large that a backward pass takes longer than the reduction: else it could not be
hidden on any machine.
reduction: what links need for the gradients of the stage with most of them.
hidden: 1 - (step - free step) / reduction. With two stages, the difference has the activations, too.
in step: 1 - tail / reduction, in steps of their own. The tail is from the last pass to the end of the
         last all-reduce, by the step's timeline.
simulated: the same by the planner's simulation with the means of these steps' passes, and the links.
simulated / step: the simulated over the measured step, of these steps.
Four ranks on two cores slow each other down where both stages of a replica work at once. The simulator
only has the mean of their passes.";

/// Reductions of replicas over slow links: how much is hidden behind backward passes
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    sweep: SweepArguments,
    /// Bytes a second of a link in one direction
    #[arg(long, value_name = "N", default_value_t = 125_000_000)]
    bytes_per_second: u64,
    /// Mebibytes of gradients that replicas add up at once
    #[arg(long, value_name = "N", default_value_t = 25)]
    bucket_mib: usize,
}

pub fn main(mut flags: Flags) -> Result<(), Failure> {
    flags.sweep = flags.sweep.or_micro_batches(&[2, 8], &[2, 8]);
    let arguments = &flags.sweep.arguments;
    serve_or_compute_alone(arguments)?;
    let mut report = BenchReport::begin("overlap", &flags)?;
    report.note(NOTE);
    let quick = arguments.quick;
    let shape = match quick {
        true => ModelShape::transformer(4, 16, 2, 4),
        false => ModelShape::transformer(8, 512, 8, 128),
    };
    let samples = arguments.samples.unwrap_or(if quick { 2 } else { 24 });
    let model = model(shape, samples.max(1));
    let bench = Overlap {
        flags: &flags,
        profile: model.profile(2)?,
        model: &*model,
    };
    let parameters = model.parameters()?;
    let (shape, speed) = (shape.describe(), 8e-9 * flags.bytes_per_second as f64);
    let mut table = ReportTable::new(format!(
        "{shape}, {parameters} parameters, {} samples a micro-batch; {speed} Gbit/s",
        model.samples()
    ));
    for stages in [1, 2] {
        for &micro_batches in &flags.sweep.micro_batches {
            bench.measure(stages, micro_batches, &mut table)?;
        }
    }
    report.table(table);
    report.save(&arguments.out)
}

struct Overlap<'a> {
    flags: &'a Flags,
    model: &'a dyn BenchModel,
    profile: Profile,
}

/// What a step took, by its own timeline.
struct Passes {
    step: f64,
    /// From the last pass to the end of the last all-reduce.
    tail: f64,
    /// Of each stage.
    forward: Vec<f64>,
    backward: Vec<f64>,
}

impl Overlap<'_> {
    fn measure(
        &self,
        stages: usize,
        micro_batches: usize,
        table: &mut ReportTable,
    ) -> Result<(), Failure> {
        let rounds = self.flags.sweep.arguments.rounds(5);
        let layers = self.profile.layers.len();
        let plan = |bytes_per_second| PipedSettings {
            replicas: REPLICAS,
            processes: REPLICAS * stages,
            network: Network::Threads { bytes_per_second },
            bucket: self.flags.bucket_mib << 20,
            ..PipedSettings::new(vec![layers / stages; stages], micro_batches)
        };
        let speed = self.flags.bytes_per_second;
        let [slow, free] = [plan(Some(speed)), plan(None)];
        let works = [&slow, &free].map(ContenderWork::passes);
        let found = race(self.model, works, rounds)?;
        let [slow_step, free_step] = &found[..] else {
            return Err("two contenders have two results".into());
        };
        let reduction = self.reduction(&slow.cut) / speed as f64;
        let passes = self.passes(&slow, rounds)?;
        let profile = self.with_passes(&slow.cut, &passes);
        let link = Link {
            latency: 0.0,
            bandwidth: speed as f64,
        };
        let simulated = simulate(&profile, &slow, link)?;
        let free = simulate(&profile, &slow, Link::default())?;
        let alone = simulate(&without_gradients(&profile), &slow, link)?;
        let hidden = |exposed: f64| 1.0 - exposed / reduction;
        let (step, free_step) = (&slow_step.seconds, &free_step.seconds);
        let exposed = difference(step, free_step).median();
        let simulated_step = simulated / passes.step;
        table.row([
            cell("stages", "stages", 0, stages),
            cell("micro_batches", "m", 0, micro_batches),
            cell("step_ms", "step ms", 1, 1e3 * step.median()),
            cell("spread_percent", "±%", 1, 100.0 * step.spread()),
            cell("free_ms", "free ms", 1, 1e3 * free_step.median()),
            cell("backward_ms", "backward ms", 1, 1e3 * passes.backward[0]),
            cell("reduction_ms", "reduction ms", 1, 1e3 * reduction),
            cell("hidden", "hidden", 3, hidden(exposed)),
            cell("simulated_hidden", "simulated", 3, hidden(simulated - free)),
            cell("hidden_in_step", "in step", 3, hidden(passes.tail)),
            cell(
                "simulated_in_step",
                "simulated",
                3,
                hidden(simulated - alone),
            ),
            cell("simulated_ms", "simulated ms", 1, 1e3 * simulated),
            cell("simulated_step", "simulated / step", 3, simulated_step),
        ]);
        Ok(())
    }

    /// Bytes of gradients that a link carries in each direction, for the stage with most of them. With
    /// two replicas each sends half of them twice.
    fn reduction(&self, cut: &[usize]) -> f64 {
        let mut layers = self.profile.layers.iter();
        let bytes = cut.iter().map(|&count| {
            let own = layers.by_ref().take(count);
            own.map(|layer| layer.parameters as f64).sum::<f64>()
        });
        let share = 2.0 * (REPLICAS as f64 - 1.0) / REPLICAS as f64;
        share * bytes.fold(0.0, f64::max)
    }

    /// The means over some steps in this process.
    fn passes(&self, plan: &PipedSettings, steps: usize) -> Result<Passes, Failure> {
        let mut piped = ranks::piped(self.model, plan, false)?;
        piped.step()?; // compiles kernels and touches memory
        let stages = plan.cut.len();
        let (mut forward, mut backward) = (vec![Vec::new(); stages], vec![Vec::new(); stages]);
        let (mut all, mut tails) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            let done = piped.step()?;
            all.push(done.passes);
            let (mut passed, mut reduced) = (0.0_f64, 0.0_f64);
            for span in done.timeline.workers.iter().flatten() {
                let (seconds, end) = (span.length().as_secs_f64(), span.end.as_secs_f64());
                match span.kind {
                    SpanKind::AllReduce => reduced = reduced.max(end),
                    _ => passed = passed.max(end),
                }
                match (span.kind, span.action) {
                    (SpanKind::Forward, Some(action)) => forward[action.stage].push(seconds),
                    (SpanKind::Backward, Some(action)) => backward[action.stage].push(seconds),
                    _ => {}
                }
            }
            tails.push((reduced - passed).max(0.0));
        }
        let means = |all: Vec<Vec<f64>>| all.iter().map(|all| mean(all)).collect();
        Ok(Passes {
            step: mean(&all),
            tail: mean(&tails),
            forward: means(forward),
            backward: means(backward),
        })
    }

    /// The profile with the times of a stage's passes: each layer has its share of them.
    fn with_passes(&self, cut: &[usize], passes: &Passes) -> Profile {
        let mut profile = self.profile.clone();
        let mut layers = &mut profile.layers[..];
        for (stage, &count) in cut.iter().enumerate() {
            let (own, rest) = layers.split_at_mut(count.min(layers.len()));
            layers = rest;
            let forward: f64 = own.iter().map(|layer| layer.forward).sum();
            let backward: f64 = own.iter().map(|layer| layer.backward).sum();
            for layer in own {
                layer.forward *= passes.forward[stage] / forward;
                layer.backward *= passes.backward[stage] / backward;
                (layer.quiet, layer.weight) = (None, None);
            }
        }
        profile
    }
}

/// Seconds of a simulated step. All ranks are joined by links of this kind.
fn simulate(profile: &Profile, plan: &PipedSettings, link: Link) -> Result<f64, Failure> {
    let workers = plan.processes;
    let machine = Machine {
        levels: vec![LinkLevel::joining(workers, link)],
        ..Machine::uniform(workers)
    };
    let setup = Setup {
        profiles: std::slice::from_ref(profile),
        machine: &machine,
        devices: &(0..workers).collect::<Vec<_>>(),
        schedule: &plan.actions()?,
        recompute: &Recompute::Never,
        weights: WeightPolicy::default(),
        state: OptimizerState::new(0),
        bucket: plan.bucket as u64,
    };
    Ok(setup.forecast(&plan.cut)?.step_time)
}

/// The same layers, with nothing to reduce.
fn without_gradients(profile: &Profile) -> Profile {
    let mut profile = profile.clone();
    for layer in &mut profile.layers {
        layer.parameters = 0;
    }
    profile
}

/// Round by round.
fn difference(a: &Seconds, b: &Seconds) -> Seconds {
    Seconds(a.0.iter().zip(&b.0).map(|(a, b)| a - b).collect())
}
