//! Training steps of replicas, next to PyTorch's.

use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    contender::{ContenderWork, contend},
    layers::{cut_in_two, totals},
    measure::{Seconds, Turn, take_turns},
    models::model,
    peer::{Peer, PeerSetup, PeerTask},
    piped::PipedSettings,
    plain::RATE,
    recipe::ModelShape,
    report::{ReportTable, cell},
};

use super::{Flags, REPLICAS};

pub(super) const NOTE: &str = "\
Whole training steps: forward, backward, AdamW (PyTorch's fused one). Two replicas of the whole model
have one micro-batch each. Two replicas of two stages run 1F1B; both sides are cut after the same
layer. Ours are threads of a process, or processes that mpirun starts. PyTorch's are processes of one
thread each that use gloo over loopback: replicas by DistributedDataParallel, stages by
torch.distributed.pipelining. All run on the same cores. PyTorch's images have their channels last.
ours / PyTorch's are samples/s, the median over rounds in which all took their turn: above 1 we are
faster. This program fails if the models have different numbers of parameters.";

/// Replicas of a model that is cut into one stage or two.
struct Case {
    shape: ModelShape,
    batch: usize,
    micro_batches: usize,
    cut: Vec<usize>,
}

struct Entrant {
    name: String,
    case: usize,
    processes: usize,
}

pub(super) fn race(shape: ModelShape, flags: &Flags) -> Result<ReportTable, Failure> {
    let arguments = &flags.sweep.arguments;
    let cases = cases(shape, arguments)?;
    let mut entrants = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let stages = case.cut.len();
        let what = match stages {
            1 => format!("{REPLICAS} replicas"),
            _ => format!("{stages} stages × {REPLICAS} replicas"),
        };
        let mut enter = |how, processes| {
            entrants.push(Entrant {
                name: format!("{what}, {how}"),
                case: index,
                processes,
            });
        };
        enter("threads", 1);
        if flags.processes {
            enter("processes", stages * REPLICAS);
        }
    }
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for entrant in &entrants {
        turns.push(cases[entrant.case].ours(entrant.processes)?);
    }
    let mut version = None;
    if let Some(python) = &flags.python {
        for case in &cases {
            let mut peer = case.peer(python)?;
            version = Some(peer.version.clone());
            let minimum = arguments.turn();
            turns.push(Box::new(move || peer.turn(minimum)));
        }
    }
    let rounds = if shape.is_amoebanet() { 9 } else { 5 };
    let mut found = take_turns(&mut turns, arguments.rounds(rounds))?;
    let theirs = found.split_off(entrants.len());

    let next_to = version.map(|version| format!(", next to PyTorch {version}"));
    let mut table = ReportTable::new(format!(
        "{}, training steps of replicas: {}, batch {}{}",
        shape.name(),
        shape.describe(),
        cases[0].batch,
        next_to.unwrap_or_default(),
    ));
    for (entrant, costs) in entrants.iter().zip(&found) {
        let case = &cases[entrant.case];
        let own = &costs.seconds;
        let rate = |seconds: &Seconds| case.batch as f64 / seconds.median();
        let mut row = vec![
            cell("way", "", 0, entrant.name.clone()),
            cell("micro_batches", "m", 0, case.micro_batches),
            cell("cut", "cut", 0, format!("{:?}", case.cut)),
            cell("samples_per_second", "ours", 2, rate(own)),
            cell("own_spread_percent", "±%", 1, 100.0 * own.spread()),
        ];
        if let Some(theirs) = theirs.get(entrant.case) {
            let ratio = theirs.seconds.over(own);
            let their_rate = rate(&theirs.seconds);
            row.extend([
                cell("pytorch_samples_per_second", "PyTorch's", 2, their_rate),
                cell("over_pytorch", "ours / PyTorch's", 3, ratio.median()),
                cell("spread_percent", "±%", 1, 100.0 * ratio.spread()),
            ]);
        }
        table.row(row);
    }
    Ok(table)
}

/// One stage, and two.
fn cases(shape: ModelShape, arguments: &Arguments) -> Result<[Case; 2], Failure> {
    let quick = arguments.quick;
    let micro_batches = if quick { 4 } else { 8 };
    let samples = match shape {
        // PyTorch's batch norm needs more than one value for each channel.
        _ if quick => 2,
        ModelShape::Amoebanet { large: false, .. } => 8,
        ModelShape::Amoebanet { large: true, .. } => 2,
        ModelShape::Transformer { .. } => 4,
    };
    let samples = arguments.samples.unwrap_or(samples).max(1);
    let costs = model(shape, samples).layer_costs(if quick { 1 } else { 5 })?;
    let case = |cut, micro_batches: usize, samples: usize| Case {
        shape,
        batch: micro_batches * samples,
        micro_batches,
        cut,
    };
    let of_replica = micro_batches / REPLICAS;
    Ok([
        case(vec![costs.len()], REPLICAS, of_replica * samples),
        case(cut_in_two(&totals(&costs))?, micro_batches, samples),
    ])
}

impl Case {
    fn ours(&self, processes: usize) -> Result<Turn<'static>, Failure> {
        let plan = PipedSettings {
            replicas: REPLICAS,
            processes,
            ..PipedSettings::new(self.cut.clone(), self.micro_batches)
        };
        let measured = model(self.shape, self.batch / self.micro_batches);
        contend(&*measured, ContenderWork::training(&plan))
    }

    fn peer(&self, python: &str) -> Result<Peer, Failure> {
        let setup = PeerSetup::Pipeline {
            cut: self.cut.clone(),
            schedule: PipedSettings::new(Vec::new(), 1).schedule,
            replicas: REPLICAS,
        };
        let task = PeerTask {
            micro_batches: self.micro_batches,
            rate: Some(RATE),
            ..PeerTask::new(python, self.shape, self.batch, setup)
        };
        Peer::start(&task)?.check(&*model(self.shape, 1))
    }
}
