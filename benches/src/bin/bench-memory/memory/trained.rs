//! Networks that were trained: the largest within a budget, and their memory by item.

use serde_json::{Value, json};
use stovepipe::plan::MemoryUse;
use stovepipe_benches::{
    Failure,
    footprint::{
        case::{Case, Network, Way},
        largest::largest,
        picture::Panel,
        predicted::Prediction,
        trial::{Items, Trial},
    },
    report::{Table, column, number},
};

use super::{
    Bench, Flags, MIB, WIDEST,
    bars::{in_a_step, measured_bar, predicted_bar},
    widest,
};

const ITEMS: &str = "\
Parameters: counted once the network has them, running statistics and bookkeeping among them. Optimizer and gradients: what
the first update brought, and what the second took away. Activations: the most that a step had allocated, less all of this and what
lay there before it. The model counts in it inputs kept for recomputation, activations from forward to backward, and a layer's
gradients on their way into the sum, but not what layers take for a moment. A naive step has no gradients yet when it has most
activations, and the model counts both. The mini-batch, buffers of threads, and the update's own values are in the peak and not
in the model.";

/// A network that was trained.
pub(crate) struct Trained {
    case: Case,
    items: Items,
    predicted: Prediction,
}

/// A way, the filters that were predicted, the network that trained, and the filters that were too many.
type Searched = (Way, Option<usize>, Option<Network>, Option<usize>);

impl Bench {
    /// The widest networks, by search from what is predicted.
    pub(crate) fn largest(&mut self) -> Result<Vec<Trained>, Failure> {
        let (mut trained, mut rows) = (Vec::new(), Vec::new());
        let pipelines = [1, 2, 4, 8].map(Way::Pipeline).into_iter();
        let most = self.flags.devices;
        for way in [Way::Naive]
            .into_iter()
            .chain(pipelines.filter(|way| way.devices() <= most))
        {
            let predicted = self.predicted(way)?;
            let Some(guess) = predicted.or(Some(self.flags.step)) else {
                continue;
            };
            let (found, too_large) = self.search(way, guess)?;
            rows.push((
                way,
                predicted,
                found.as_ref().map(|found| found.case.network),
                too_large,
            ));
            trained.extend(found);
        }
        self.largest_table(&rows, &trained)?;
        Ok(trained)
    }

    /// Trains networks, from a guess on, until one trains and the next wider one does not. Stages share the memory of
    /// their process, so for several devices nothing wider than the guess is tried: it would be too large for one of them.
    fn search(
        &mut self,
        way: Way,
        guess: usize,
    ) -> Result<(Option<Trained>, Option<usize>), Failure> {
        let (mut best, mut too_large) = (None::<Trained>, None::<usize>);
        let step = self.flags.step;
        let widest = if way.devices() == 1 { WIDEST } else { guess };
        largest(guess, step, step..=widest, |filters| {
            let trained = self.train(self.case(way, filters))?;
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
        let columns = [
            column("way", "way", 0),
            column("predicted_filters", "predicted D", 0),
            column("trained_filters", "trained D", 0),
            column("too_large", "too large D", 0),
            column("parameters", "parameters", 0),
            column("times_naive", "× naive-1", 2),
            column("peak_mib", "peak MiB", 1),
            column("step_seconds", "step s", 2),
        ];
        let Flags {
            budget,
            layers,
            side,
            images,
            ..
        } = self.flags;
        let title = format!(
            "largest: AmoebaNet-D({layers}, D) at {side}², batch {images}, within {budget} MiB a device"
        );
        let mut table = Table::new(title, columns);
        let naive = rows
            .first()
            .and_then(|row| row.2)
            .map(Network::parameters)
            .transpose()?;
        for (way, predicted, network, too_large) in rows {
            let items = trained.iter().find(|trained| trained.case.way == *way);
            let items = items.map(|trained| trained.items);
            let parameters = network.map(Network::parameters).transpose()?;
            let times = parameters
                .zip(naive)
                .map(|(own, naive)| own as f64 / naive as f64);
            table.row(json!([
                way.to_string(),
                predicted,
                network.map(|network| network.filters),
                too_large,
                parameters,
                times.map(number),
                items.map(|items| number(items.peak as f64 / MIB)),
                items.map(|items| number(items.seconds)),
            ]));
        }
        self.report.table(table);
        Ok(())
    }

    /// Trains a case if there is enough memory.
    fn train(&mut self, case: Case) -> Result<Option<Trained>, Failure> {
        let predicted = self.predictor.predict(&case)?;
        let trial = Trial {
            case,
            cut: predicted.cut.clone(),
            device: self.flags.device.clone(),
            budget: self.budget() * case.way.devices() as u64,
        };
        let items = trial.in_child()?;
        let found = match &items {
            Some(items) => format!("trains, {:.0} MiB", items.peak as f64 / MIB),
            None => "does not fit".to_owned(),
        };
        self.pace
            .tell(&format!("{} as {}: {found}", case.network, case.way));
        Ok(items.map(|items| Trained {
            case,
            items,
            predicted,
        }))
    }

    /// The widest network that the model lets within the budget.
    fn predicted(&self, way: Way) -> Result<Option<usize>, Failure> {
        let step = self.flags.step;
        widest(&self.predictor, self.case(way, step), self.budget(), step)
    }

    /// What was measured next to what was predicted.
    pub(crate) fn items(&mut self, trained: &[Trained]) {
        let columns = [
            column("way", "way", 0),
            column("network", "network", 0),
            column("item", "item", 0),
            column("measured_mib", "measured MiB", 2),
            column("predicted_mib", "predicted MiB", 2),
            column("ratio", "predicted / measured", 3),
        ];
        self.report.note(ITEMS);
        let mut table = Table::new("items: bytes of all stages together", columns);
        for Trained {
            case,
            items,
            predicted,
        } in trained
        {
            for (item, measured, predicted) in compared(items, predicted.sum()) {
                let ratio = predicted.map_or(Value::Null, |bytes| number(bytes / measured));
                table.row(json!([
                    case.way.to_string(),
                    case.network.to_string(),
                    item,
                    number(measured / MIB),
                    predicted.map(|bytes| number(bytes / MIB)),
                    ratio,
                ]));
            }
        }
        self.report.table(table);
        let Flags { side, images, .. } = self.flags;
        let group = |trained: &Trained| {
            let bars = vec![
                measured_bar(&trained.items),
                predicted_bar(trained.predicted.sum(), true),
            ];
            (
                format!("{} {}", trained.case.way, trained.case.network),
                bars,
            )
        };
        self.panels.push(Panel {
            title: format!("Trained at {side}², batch {images}: all stages together"),
            unit: ("MiB", MIB),
            groups: trained.iter().map(group).collect(),
        });
    }
}

/// Items by name, measured and predicted, in bytes.
fn compared(items: &Items, predicted: MemoryUse) -> [(&'static str, f64, Option<f64>); 8] {
    let sum = items.parameters + items.optimizer + items.gradients + items.activations;
    let row = |name, measured: u64, predicted: Option<u64>| {
        (name, measured as f64, predicted.map(|bytes| bytes as f64))
    };
    [
        row("parameters", items.parameters, Some(predicted.parameters)),
        row("optimizer", items.optimizer, Some(predicted.optimizer)),
        row("gradients", items.gradients, Some(predicted.parameters)),
        row("activations", items.activations, Some(in_a_step(predicted))),
        row("sum", sum, Some(predicted.total())),
        row("mini-batch", items.batch, None),
        row("buffers", items.other, None),
        row("peak", items.peak, Some(predicted.total())),
    ]
}
