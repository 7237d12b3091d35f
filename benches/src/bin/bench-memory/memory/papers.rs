//! The papers' networks, as the model predicts them.

use burn::tensor::Device;
use serde_json::json;
use stovepipe::train::settings::OptimizerSetting;
use stovepipe_benches::{
    Failure,
    footprint::{
        GB,
        case::{Case, Images},
        picture::Panel,
        predicted::Predictor,
        published::{Memory, Published, TABLE_1},
    },
    report::{Table, column, number},
};

use super::{
    Bench,
    bars::{in_a_step, predicted_bar, published_bar},
    widest,
};

const FULL: &str = "\
Nothing here was trained: it is what the model predicts for 224² and batch 128, as the papers have it. Model: parameters and
what RMSProp with momentum keeps, 12 bytes a parameter; gradients, 4 more, stand by themselves. The papers do not say where
they count gradients; torchgpipe's models have 12.0 bytes a parameter, the paper's 11.9 to 13.3.";

/// In GB: the accelerators that the GPipe paper had, and a card of 24 GB or so.
const BUDGETS: [f64; 2] = [8.0, 24.6];

impl Bench {
    /// The papers' networks, as the model predicts them.
    pub(crate) fn full_size(&mut self) -> Result<(), Failure> {
        let images = match self.flags.quick {
            true => Images { side: 32, count: 8 },
            false => Images {
                side: 224,
                count: 128,
            },
        };
        self.pace.say("measuring layers at full size");
        // The CPU's layers, wherever others were trained: they are there on every machine.
        let predictor = Predictor::measure(images.side, 18, &Device::flex(), || {
            crate::ALLOCATOR.allocated()
        })?;
        self.report.note(FULL);
        self.published_table(&predictor, images)?;
        self.budgets_table(&predictor, images)
    }

    fn published_table(&mut self, predictor: &Predictor, images: Images) -> Result<(), Failure> {
        let columns = [
            column("way", "way", 0),
            column("network", "network", 0),
            column("parameters", "parameters", 0),
            column("model_gb", "model GB", 2),
            column("gradients_gb", "gradients GB", 2),
            column("activations_gb", "activations GB", 2),
            column("fullest_gb", "fullest device GB", 2),
            column("paper_model_gb", "GPipe model", 2),
            column("paper_activations_gb", "GPipe activations", 2),
            column("torchgpipe_model_gb", "torchgpipe model", 2),
            column("torchgpipe_activations_gb", "torchgpipe activations", 2),
        ];
        let Images { side, count } = images;
        let title = format!(
            "predicted: the papers' networks at {side}², batch {count}, all devices together"
        );
        let mut table = Table::new(title.clone(), columns);
        let gb = |bytes: u64| number(bytes as f64 / GB);
        let mut groups = Vec::new();
        for Published {
            way,
            network,
            paper,
            torchgpipe,
        } in TABLE_1
        {
            let optimizer = OptimizerSetting::RmsProp;
            let predicted = predictor.predict(&Case {
                network,
                images,
                way,
                optimizer,
            })?;
            let sum = predicted.sum();
            let published = |memory: Memory| {
                [Some(memory.model), memory.activations].map(|bytes| bytes.map(|b| number(b / GB)))
            };
            let ([a, b], [c, d]) = (published(paper), published(torchgpipe));
            table.row(json!([
                way.to_string(),
                network.to_string(),
                network.parameters()?,
                gb(sum.parameters + sum.optimizer),
                gb(sum.parameters),
                gb(in_a_step(sum)),
                gb(predicted.fullest()),
                a,
                b,
                c,
                d,
            ]));
            let bars = vec![
                predicted_bar(sum, false),
                published_bar("GPipe", paper),
                published_bar("torchgpipe", torchgpipe),
            ];
            groups.push((format!("{way} {network}"), bars));
        }
        self.report.table(table);
        self.panels.push(Panel {
            title: format!(
                "Prediction at {side}², batch {count}, next to the papers: all devices together"
            ),
            unit: ("GB", GB),
            groups,
        });
        Ok(())
    }

    fn budgets_table(&mut self, predictor: &Predictor, images: Images) -> Result<(), Failure> {
        let columns = [
            column("budget_gb", "GB a device", 1),
            column("way", "way", 0),
            column("network", "network", 0),
            column("parameters", "parameters", 0),
            column("times_naive", "× naive-1", 2),
            column("fullest_gb", "fullest device GB", 2),
        ];
        let mut table = Table::new(
            "predicted: the largest within a budget, at the papers' size",
            columns,
        );
        let budgets = if self.flags.quick {
            [0.5, 1.0]
        } else {
            BUDGETS
        };
        for budget in budgets {
            let mut naive = None;
            for Published { way, network, .. } in TABLE_1 {
                let optimizer = OptimizerSetting::RmsProp;
                let case = Case {
                    network,
                    images,
                    way,
                    optimizer,
                };
                let Some(filters) = widest(predictor, case, (budget * GB) as u64, 16)? else {
                    table.row(json!([
                        number(budget),
                        way.to_string(),
                        "none",
                        null,
                        null,
                        null
                    ]));
                    continue;
                };
                let network = network.with_filters(filters);
                let parameters = network.parameters()?;
                let naive = *naive.get_or_insert(parameters);
                table.row(json!([
                    number(budget),
                    way.to_string(),
                    network.to_string(),
                    parameters,
                    number(parameters as f64 / naive as f64),
                    number(predictor.predict(&Case { network, ..case })?.fullest() as f64 / GB),
                ]));
            }
        }
        self.report.table(table);
        Ok(())
    }
}
