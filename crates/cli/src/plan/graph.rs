//! Plans for a graph of layers, by PipeDream's partitioner.

use std::fmt::Write;

use serde_json::{Value, json};
use stovepipe::{
    plan::{LayerGraph, Machine, Partition, ReplicatedStage, States, partition},
    schedule::{
        Costs, Link, PipeDream, Recompute, RoundRobin, Scheduler, StageCosts, WeightPolicy, count,
    },
};

use super::flags::PlanFlags;
use crate::{
    error::{CliError, usage},
    output::{self, Table},
};

pub fn plan(flags: &PlanFlags, graph: &LayerGraph, machine: &Machine) -> Result<(), CliError> {
    if flags.out.is_some() {
        return Err(usage!(
            "a plan from a graph.txt is not for a model that can be trained here: leave --out out"
        ));
    }
    if flags.micro_batches.len() > 1 {
        return Err(usage!(
            "a plan from a graph.txt is for one number of --micro-batches"
        ));
    }
    let states = States::from_graph(graph)?;
    let partition = partition(&states, machine)?;
    let workers = machine.devices.len();
    let micro_batches = match flags.micro_batches[..] {
        [] => 4 * workers,
        [count, ..] => count,
    };
    let report = GraphReport {
        graph,
        states: &states,
        machine,
        partition: &partition,
        micro_batches,
    };
    let advice = report.advice()?;
    output::print_either(flags.json, || report.json(&advice), || report.text(&advice))?;
    Ok(())
}

struct GraphReport<'a> {
    graph: &'a LayerGraph,
    states: &'a States,
    machine: &'a Machine,
    partition: &'a Partition,
    micro_batches: usize,
}

struct Advice {
    schedule: &'static str,
    micro_batches: usize,
    /// Seconds of all micro-batches together.
    step_time: f64,
    bubble: f64,
}

impl GraphReport<'_> {
    /// The schedule that gives the result of one device, then the one that does not.
    fn advice(&self) -> Result<[Advice; 2], CliError> {
        let stages = self.partition.stages.iter();
        let replicas: Vec<_> = stages.map(|stage| stage.replicas).collect();
        // Whole updates, each with a mini-batch for every replica.
        let most = replicas.iter().copied().max().unwrap_or(1);
        let whole = self.micro_batches.next_multiple_of(most.max(1));
        let flushed = RoundRobin::new(replicas.clone());
        Ok([
            self.simulate("1f1b", &flushed, self.micro_batches)?,
            self.simulate("pipedream", &PipeDream::new(replicas), whole)?,
        ])
    }

    fn simulate(
        &self,
        name: &'static str,
        scheduler: &dyn Scheduler,
        micro_batches: usize,
    ) -> Result<Advice, CliError> {
        let stages = &self.partition.stages;
        let schedule = scheduler.schedule(stages.len(), micro_batches)?;
        let outermost = self.machine.levels.last();
        let link = outermost.copied().map_or(Link::default(), Link::from);
        let costs = Costs {
            stages: stages.iter().map(|stage| self.costs(stage)).collect(),
            links: vec![link],
            skips: Vec::new(),
            recompute: Recompute::Never,
            speeds: Vec::new(),
            weights: WeightPolicy::default(),
        };
        let simulation = schedule.simulate(&costs)?;
        Ok(Advice {
            schedule: name,
            micro_batches,
            step_time: simulation.step_time(),
            bubble: simulation.bubble(),
        })
    }

    /// What a stage takes for a micro-batch on one of its replicas, the exchange of its gradients
    /// included.
    fn costs(&self, stage: &ReplicatedStage) -> StageCosts {
        let layers = self.states.layers(&stage.states);
        let nodes = || layers.iter().map(|&layer| &self.graph.nodes()[layer]);
        let forward: f64 = nodes().map(|node| node.forward).sum();
        let backward: f64 = nodes().map(|node| node.backward).sum();
        // Several devices may do what one is profiled for; gradients are exchanged in the meantime.
        let all = stage.time * stage.replicas as f64;
        let profiled = forward + backward;
        let scale = if profiled > 0.0 { all / profiled } else { 0.0 };
        StageCosts {
            forward: scale * forward,
            quiet: scale * forward,
            input: scale * backward / 2.0,
            weight: scale * backward / 2.0,
            output: self.states.output(stage.states.end - 1),
            ..StageCosts::default()
        }
    }

    fn json(&self, [advised, other]: &[Advice; 2]) -> Value {
        json!({
            "states": self.states.count(),
            "workers": self.machine.devices.len(),
            "stages": self.stages(self.partition),
            "stage_time": self.partition.time,
            "schedule": advised.schedule,
            "micro_batches": self.micro_batches,
            "step_time": advised.step_time,
            "bubble": advised.bubble,
            "runners_up": [{
                "schedule": other.schedule,
                "micro_batches": other.micro_batches,
                "step_time": other.step_time,
                "bubble": other.bubble,
                "why": STALE,
            }],
        })
    }

    fn stages(&self, partition: &Partition) -> Value {
        let stages = partition.stages.iter().map(|stage| {
            let layers = self.states.layers(&stage.states);
            let name = |&layer: &usize| &self.graph.nodes()[layer].id;
            let mut value = json!({
                "states": [stage.states.start, stage.states.end],
                "layers": layers.iter().map(name).collect::<Vec<_>>(),
                "replicas": stage.replicas,
                "stage_time": stage.time,
            });
            if let Some(inside) = &stage.inside {
                let stages = self.stages(inside);
                value["inside"] = json!({ "stages": stages, "stage_time": inside.time });
            }
            value
        });
        stages.collect()
    }

    fn text(&self, [advised, other]: &[Advice; 2]) -> String {
        let mut text = format!(
            "{} on {}: {:.9} s a mini-batch for the slowest stage\n\n",
            count(self.states.count(), "state"),
            count(self.machine.devices.len(), "worker"),
            self.partition.time,
        );
        let mut table = Table::new("stage | states | >layers | >replicas | >stage time");
        self.rows(&mut table, self.partition, "");
        let _ = writeln!(text, "{table}");
        for (advice, why) in [(advised, "the result of one device"), (other, STALE)] {
            let _ = writeln!(
                text,
                "{}: {} a mini-batch over {} in a row, bubble {:.1} %; {why}",
                advice.schedule,
                output::seconds(advice.step_time / advice.micro_batches as f64),
                advice.micro_batches,
                100.0 * advice.bubble,
            );
        }
        text
    }

    fn rows(&self, table: &mut Table, partition: &Partition, indent: &str) {
        for (index, stage) in partition.stages.iter().enumerate() {
            table.row(vec![
                format!("{indent}{index}"),
                format!("{}–{}", stage.states.start, stage.states.end),
                self.states.layers(&stage.states).len().to_string(),
                stage.replicas.to_string(),
                output::seconds(stage.time),
            ]);
            if let Some(inside) = &stage.inside {
                self.rows(table, inside, &format!("{indent}  "));
            }
        }
    }
}

const STALE: &str =
    "weights change between forward and backward passes: not the result of one device";
