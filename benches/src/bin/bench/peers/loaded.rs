//! Two stages next to PyTorch's two processes while another process takes half of a core.

use std::cell::RefCell;

use stovepipe::{prelude::Recompute, schedule::Rule};
use stovepipe_benches::{
    Failure,
    bench_progress::BenchProgress,
    contender::{ContenderWork, contend},
    load::HalfACore,
    measure::{Turn, take_turns},
    models::model,
    peer::{Peer, PeerSetup, PeerTask},
    piped::PipedSettings,
    plain::RATE,
    recipe::ModelShape,
    report::{ReportTable, cell},
};

use super::{Peers, shapes};

const SCHEDULE: Rule = Rule::OneForwardOneBackward;

impl Peers<'_> {
    pub(crate) fn loaded(&mut self) -> Result<(), Failure> {
        let shapes = shapes(&self.flags.arguments);
        let title =
            "1F1B while another process takes half of a core: samples/s, and the share kept";
        let mut table = ReportTable::new(title);
        let mut progress = BenchProgress::new(shapes.len());
        for shape in shapes {
            self.load(shape, &mut table)?;
            progress.done(&format!("{} under load", shape.name()));
        }
        self.report.table(table);
        Ok(())
    }

    fn load(&self, shape: ModelShape, table: &mut ReportTable) -> Result<(), Failure> {
        let micro_batches = if self.flags.arguments.quick { 2 } else { 8 };
        let (batch, cut) = (self.batch(shape, micro_batches), self.cut(shape)?);
        let minimum = self.flags.arguments.turn();
        let plan = PipedSettings {
            schedule: SCHEDULE,
            recompute: Recompute::Never,
            ..PipedSettings::new(cut.clone(), micro_batches)
        };
        let measured = model(shape, batch / micro_batches);
        let mut sides = vec![("ours", contend(&*measured, ContenderWork::training(&plan))?)];
        if !self.flags.alone {
            let setup = PeerSetup::Pipeline {
                cut,
                schedule: SCHEDULE,
                replicas: 1,
            };
            let task = PeerTask {
                micro_batches,
                rate: Some(RATE),
                ..self.task(shape, batch, setup)
            };
            let mut peer = Peer::start(&task)?.check(&*measured)?;
            sides.push(("PyTorch's", Box::new(move || peer.turn(minimum))));
        }
        // Each side takes its turn alone and then under load, in the same processes.
        let load = HalfACore::default();
        let (names, sides): (Vec<_>, Vec<_>) = sides.into_iter().unzip();
        let sides: Vec<_> = sides.into_iter().map(RefCell::new).collect();
        let mut turns: Vec<Turn<'_>> = Vec::new();
        for side in &sides {
            turns.push(Box::new(|| side.borrow_mut()()));
            turns.push(Box::new(|| load.beside(|| side.borrow_mut()())));
        }
        let found = take_turns(&mut turns, self.flags.arguments.rounds(5))?;
        let kept = |side: usize| found[2 * side].seconds.over(&found[2 * side + 1].seconds);
        let ours = kept(0);
        for (side, name) in names.into_iter().enumerate() {
            let rate = |turn: usize| batch as f64 / found[turn].seconds.median();
            let of_theirs = (side == 0 && found.len() > 2).then(|| ours.over(&kept(1)));
            table.row([
                cell("model", "model", 0, shape.name()),
                cell("side", "", 0, name),
                cell("alone", "alone", 2, rate(2 * side)),
                cell("loaded", "under load", 2, rate(2 * side + 1)),
                cell("kept", "kept", 3, kept(side).median()),
                cell("kept_spread_percent", "±%", 1, 100.0 * kept(side).spread()),
                cell(
                    "of_theirs",
                    "ours / PyTorch's",
                    3,
                    of_theirs.map(|ratio| ratio.median()),
                ),
            ]);
        }
        Ok(())
    }
}
