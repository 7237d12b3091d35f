//! The papers' networks, as the model predicts them.

use burn::tensor::Device;
use stovepipe::train::settings::OptimizerSetting;
use stovepipe_benches::{
    Failure,
    footprint::{
        GB,
        case::{FootprintCase, ImageBatch, Network},
        picture::BarPanel,
        predicted::Predictor,
        published::{Published, TABLE_1},
    },
    report::{ReportTable, cell},
};

use super::{
    Bench,
    bars::{in_a_step, predicted_bar, published_bar},
    widest,
};

const FULL: &str = "\
Nothing here was trained: these are predictions for 224² and batch 128, as in the papers. Model:
parameters and the state of RMSProp with momentum, 12 bytes a parameter; gradients, 4 more, have their
own column. The papers do not say where they count gradients; torchgpipe's models have 12.0 bytes a
parameter, the GPipe paper's 11.9 to 13.3.";

/// In GB: the accelerators of the GPipe paper, and a GPU of 24 GB.
const BUDGETS: [f64; 2] = [8.0, 24.6];

impl Bench {
    pub(crate) fn full_size(&mut self) -> Result<(), Failure> {
        let quick = self.flags.quick.then_some((32, 8));
        let (side, count) = quick.unwrap_or((224, 128));
        let images = ImageBatch { side, count };
        self.progress.note("measuring layers at full size");
        // On the CPU, which every machine has, even if the networks were trained on another device.
        let device = Device::flex();
        let predictor = Predictor::measure(images.side, 18, &device, &crate::profiler(&device))?;
        self.report.note(FULL);
        self.published_table(&predictor, images)?;
        self.budgets_table(&predictor, images)
    }

    fn published_table(
        &mut self,
        predictor: &Predictor,
        images: ImageBatch,
    ) -> Result<(), Failure> {
        let ImageBatch { side, count } = images;
        let mut table = ReportTable::new(format!(
            "predicted: the papers' networks at {side}², batch {count}, all devices together"
        ));
        let gb = |bytes: u64| bytes as f64 / GB;
        let mut groups = Vec::new();
        for published in TABLE_1 {
            let (strategy, network) = (published.strategy, published.network);
            let (paper, torchgpipe) = (published.paper, published.torchgpipe);
            let predicted = predictor.predict(&case(published, images))?;
            let sum = predicted.sum();
            let (model, fullest) = (sum.parameters + sum.optimizer, gb(predicted.fullest()));
            let [a, b] = [paper, torchgpipe].map(|memory| memory.activations.map(|b| b / GB));
            let theirs = torchgpipe.model / GB;
            table.row([
                cell("way", "strategy", 0, strategy.to_string()),
                cell("network", "network", 0, network.to_string()),
                cell("parameters", "parameters", 0, network.parameters()?),
                cell("model_gb", "model GB", 2, gb(model)),
                cell("gradients_gb", "gradients GB", 2, gb(sum.gradients)),
                cell("activations_gb", "activations GB", 2, gb(in_a_step(sum))),
                cell("fullest_gb", "fullest device GB", 2, fullest),
                cell("paper_model_gb", "GPipe model", 2, paper.model / GB),
                cell("paper_activations_gb", "GPipe activations", 2, a),
                cell("torchgpipe_model_gb", "torchgpipe model", 2, theirs),
                cell("torchgpipe_activations_gb", "torchgpipe activations", 2, b),
            ]);
            let bars = vec![
                predicted_bar(sum, false),
                published_bar("GPipe", paper),
                published_bar("torchgpipe", torchgpipe),
            ];
            groups.push((format!("{strategy} {network}"), bars));
        }
        self.report.table(table);
        let title = "next to the papers: all devices together";
        self.panels.push(BarPanel {
            title: format!("Prediction at {side}², batch {count}, {title}"),
            unit: ("GB", GB),
            groups,
        });
        Ok(())
    }

    fn budgets_table(&mut self, predictor: &Predictor, images: ImageBatch) -> Result<(), Failure> {
        let title = "predicted: the largest within a budget, at the papers' size";
        let mut table = ReportTable::new(title);
        let quick = self.flags.quick.then_some([0.5, 1.0]);
        for budget in quick.unwrap_or(BUDGETS) {
            let mut naive = None;
            for published in TABLE_1 {
                let case = case(published, images);
                let filters = widest(predictor, case, (budget * GB) as u64, 16)?;
                let network = filters.map(|filters| case.network.with_filters(filters));
                let parameters = network.map(Network::parameters).transpose()?;
                naive = naive.or(parameters);
                let times = (parameters.zip(naive)).map(|(own, naive)| own as f64 / naive as f64);
                let predict = |network| predictor.predict(&FootprintCase { network, ..case });
                let predicted = network.map(predict).transpose()?;
                let fullest = predicted.map(|predicted| predicted.fullest() as f64 / GB);
                let network = network.map_or("none".to_owned(), |network| network.to_string());
                table.row([
                    cell("budget_gb", "GB a device", 1, budget),
                    cell("way", "strategy", 0, case.strategy.to_string()),
                    cell("network", "network", 0, network),
                    cell("parameters", "parameters", 0, parameters),
                    cell("times_naive", "× naive-1", 2, times),
                    cell("fullest_gb", "fullest device GB", 2, fullest),
                ]);
            }
        }
        self.report.table(table);
        Ok(())
    }
}

fn case(published: Published, images: ImageBatch) -> FootprintCase {
    FootprintCase {
        network: published.network,
        images,
        strategy: published.strategy,
        optimizer: OptimizerSetting::RmsProp,
    }
}
