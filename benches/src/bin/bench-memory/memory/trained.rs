//! Trained networks: the largest within a budget, and their memory by item.

use stovepipe::plan::MemoryUse;
use stovepipe_benches::{
    Failure,
    footprint::{
        case::{FootprintCase, ImageBatch, Network, Strategy},
        largest::largest,
        picture::BarPanel,
        predicted::Prediction,
        trial::{MeasuredMemory, Trial},
    },
    report::{ReportTable, cell},
};

use super::{
    Bench, MIB, WIDEST,
    bars::{in_a_step, measured_bar, predicted_bar},
    widest,
};

const ITEMS: &str = "\
Parameters: counted once the network is complete, with running statistics and bookkeeping. Optimizer
and gradients: what the first update allocated, and what the second freed. Activations: the peak of a
step, minus all of this and what was allocated before it. The model includes inputs kept for
recomputation, activations from forward to backward, and what a running layer needs besides. Its
gradients are those that are there when most is needed. The update's own values are in the peak and not
in the model.";

pub(crate) struct Trained {
    case: FootprintCase,
    items: MeasuredMemory,
    predicted: Prediction,
}

/// A strategy, the predicted filters, the network that trained, and the filters that were too many.
type Searched = (Strategy, Option<usize>, Option<Network>, Option<usize>);

impl Bench {
    /// Searches the widest networks, starting from the prediction.
    pub(crate) fn largest(&mut self) -> Result<Vec<Trained>, Failure> {
        let (mut trained, mut rows) = (Vec::new(), Vec::new());
        let pipelines = [1, 2, 4, 8].into_iter();
        let pipelines = pipelines.filter(|&devices| devices <= self.flags.devices);
        let strategies = std::iter::once(Strategy::Naive).chain(pipelines.map(Strategy::Pipeline));
        for strategy in strategies.collect::<Vec<_>>() {
            let predicted = self.predicted(strategy)?;
            let guess = predicted.unwrap_or(self.flags.step);
            let (found, too_large) = self.search(strategy, guess)?;
            let network = found.as_ref().map(|found| found.case.network);
            rows.push((strategy, predicted, network, too_large));
            trained.extend(found);
        }
        self.largest_table(&rows, &trained)?;
        Ok(trained)
    }

    /// Trains networks, starting from a guess, until one trains and the next wider one does not.
    /// Stages share the memory of their process, so for several devices nothing wider than the guess
    /// is tried: it would be too large for one of them.
    fn search(
        &mut self,
        strategy: Strategy,
        guess: usize,
    ) -> Result<(Option<Trained>, Option<usize>), Failure> {
        let (mut best, mut too_large) = (None::<Trained>, None::<usize>);
        let step = self.flags.step;
        let alone = strategy.devices() == 1;
        let widest = if alone { WIDEST } else { guess };
        largest(guess, step, step..=widest, |filters| {
            let trained = self.train(self.case(strategy, filters))?;
            let fits = trained.is_some();
            match trained {
                Some(trained) => best = Some(trained),
                None => too_large = Some(filters),
            }
            Ok(fits)
        })?;
        Ok((best, too_large))
    }

    fn largest_table(&mut self, rows: &[Searched], trained: &[Trained]) -> Result<(), Failure> {
        let ImageBatch { side, count } = self.images();
        let (layers, budget) = (self.flags.layers, self.flags.budget);
        let mut table = ReportTable::new(format!(
            "largest: AmoebaNet-D({layers}, D) at {side}², batch {count}, within {budget} MiB a device"
        ));
        let naive = rows.first().and_then(|row| row.2);
        let naive = naive.map(Network::parameters).transpose()?;
        for &(strategy, predicted, network, too_large) in rows {
            let items = (trained.iter()).find(|trained| trained.case.strategy == strategy);
            let items = items.map(|trained| trained.items);
            let parameters = network.map(Network::parameters).transpose()?;
            let times = (parameters.zip(naive)).map(|(own, naive)| own as f64 / naive as f64);
            let filters = network.map(|network| network.filters);
            let seconds = items.map(|items| items.seconds);
            let peak = items.map(|items| items.peak as f64 / MIB);
            table.row([
                cell("way", "strategy", 0, strategy.to_string()),
                cell("predicted_filters", "predicted D", 0, predicted),
                cell("trained_filters", "trained D", 0, filters),
                cell("too_large", "too large D", 0, too_large),
                cell("parameters", "parameters", 0, parameters),
                cell("times_naive", "× naive-1", 2, times),
                cell("peak_mib", "peak MiB", 1, peak),
                cell("step_seconds", "step s", 2, seconds),
            ]);
        }
        self.report.table(table);
        Ok(())
    }

    fn train(&mut self, case: FootprintCase) -> Result<Option<Trained>, Failure> {
        let predicted = self.predictor.predict(&case)?;
        let trial = Trial {
            case,
            cut: predicted.cut.clone(),
            device: self.flags.device.clone(),
            budget: self.budget() * case.strategy.devices() as u64,
        };
        let items = trial.in_child()?;
        let found = match &items {
            Some(items) => format!("trains, {:.0} MiB", items.peak as f64 / MIB),
            None => "does not fit".to_owned(),
        };
        let done = format!("{} as {}: {found}", case.network, case.strategy);
        self.progress.done(&done);
        Ok(items.map(|items| Trained {
            case,
            items,
            predicted,
        }))
    }

    /// The widest network that fits into the budget by the memory model.
    fn predicted(&self, strategy: Strategy) -> Result<Option<usize>, Failure> {
        let (step, budget) = (self.flags.step, self.budget());
        widest(&self.predictor, self.case(strategy, step), budget, step)
    }

    pub(crate) fn items(&mut self, trained: &[Trained]) {
        self.report.note(ITEMS);
        let mut table = ReportTable::new("items: bytes of all stages together");
        let mut groups = Vec::new();
        for trained in trained {
            let (case, predicted) = (trained.case, trained.predicted.sum());
            for (item, measured, predicted) in compared(&trained.items, predicted) {
                let ratio = predicted.map(|bytes| bytes / measured);
                let mib = predicted.map(|bytes| bytes / MIB);
                table.row([
                    cell("way", "strategy", 0, case.strategy.to_string()),
                    cell("network", "network", 0, case.network.to_string()),
                    cell("item", "item", 0, item),
                    cell("measured_mib", "measured MiB", 2, measured / MIB),
                    cell("predicted_mib", "predicted MiB", 2, mib),
                    cell("ratio", "predicted / measured", 3, ratio),
                ]);
            }
            let bars = vec![measured_bar(&trained.items), predicted_bar(predicted, true)];
            groups.push((format!("{} {}", case.strategy, case.network), bars));
        }
        self.report.table(table);
        let ImageBatch { side, count } = self.images();
        self.panels.push(BarPanel {
            title: format!("Trained at {side}², batch {count}: all stages together"),
            unit: ("MiB", MIB),
            groups,
        });
    }
}

/// Items by name, measured and predicted, in bytes.
fn compared(items: &MeasuredMemory, predicted: MemoryUse) -> [(&'static str, f64, Option<f64>); 8] {
    let sum =
        items.parameters + items.optimizer + items.gradients + items.activations + items.batch;
    let row = |name, measured: u64, predicted: Option<u64>| {
        (name, measured as f64, predicted.map(|bytes| bytes as f64))
    };
    [
        row("parameters", items.parameters, Some(predicted.parameters)),
        row("optimizer", items.optimizer, Some(predicted.optimizer)),
        row("gradients", items.gradients, Some(predicted.gradients)),
        row("activations", items.activations, Some(in_a_step(predicted))),
        row("sum", sum, Some(predicted.total())),
        row("mini-batch", items.batch, Some(predicted.batch)),
        row("buffers", items.other, None),
        row("peak", items.peak, Some(predicted.total())),
    ]
}
