//! Losses, which have to be PyTorch's.

use std::{fs, path::Path};

use serde_json::json;
use stovepipe::schedule::Rule;
use stovepipe_benches::{
    Failure,
    curves::{Panel, draw},
    layers::cut_in_two,
    learning::{self, Learning},
    models::model,
    pace::Pace,
    peer::{Peer, Task, Way},
    piped::PipelineSettings,
    recipe::Shape,
    report::{Table, column, number},
};

use super::{Peers, shapes};

/// How far losses may be from those in double precision, as a share of them. Sums in another order differ
/// in the seventh digit, and every update makes more of it: of small gradients AdamW takes little but the sign.
const TOLERANCE: f64 = 0.01;
/// Losses that PyTorch's rounding moves farther say how much rounding does: ours may be this many times as far.
const TIMES_PYTORCH: f64 = 2.0;

/// What the curves are called. PyTorch's come first; the first of all is what the others are set against.
const CURVES: [&str; 5] = [
    "PyTorch, f64",
    "PyTorch, one device",
    "PyTorch, two stages",
    "ours, one device",
    "ours, two stages",
];

impl Peers<'_> {
    /// Trains from the same weights on the same mini-batches in five ways.
    pub(crate) fn losses(&mut self) -> Result<(), Failure> {
        if self.flags.alone {
            self.report
                .note("Without PyTorch there is nothing to set losses against.");
            return Ok(());
        }
        let columns = [
            column("model", "model", 0),
            column("curve", "curve", 0),
            column("first", "first loss", 4),
            column("last", "last loss", 4),
            column("largest_difference", "largest difference", 6),
        ];
        let title = format!("losses next to {}'s, as shares of them", CURVES[0]);
        let mut summary = Table::new(title, columns);
        let mut panels = Vec::new();
        let mut unlike = Vec::new();
        let shapes = shapes(&self.flags.arguments);
        let mut pace = Pace::new(shapes.len());
        for shape in shapes {
            let shape = short(shape);
            let curves = self.curves(shape)?;
            pace.tell(&format!("losses of {}", shape.name()));
            self.report.table(losses_table(shape, &curves));
            let apart: Vec<_> = curves
                .iter()
                .map(|curve| difference(curve, &curves[0]))
                .collect();
            if !are_alike(&apart) {
                unlike.push(shape.name());
            }
            for ((name, curve), apart) in CURVES.iter().zip(&curves).zip(apart) {
                let [first, last] =
                    [curve.first(), curve.last()].map(|loss| loss.copied().unwrap_or(f64::NAN));
                summary.row(json!([
                    shape.name(),
                    name,
                    number(first),
                    number(last),
                    number(apart)
                ]));
            }
            panels.push(Panel {
                title: shape.name().to_owned(),
                curves,
            });
        }
        self.report.table(summary);
        save_picture(&self.flags.arguments.out, &panels)?;
        match unlike.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "losses of {} differ by more than {TOLERANCE} of themselves, and much more than PyTorch's do: the work is \
                 not the same",
                unlike.join(" and ")
            )
            .into()),
        }
    }

    fn curves(&self, shape: Shape) -> Result<Vec<Vec<f64>>, Failure> {
        let quick = self.flags.arguments.quick;
        let micro_batches = if quick { 2 } else { 8 };
        let (samples, rate) = match shape {
            Shape::Amoebanet { large, .. } => (if large && !quick { 1 } else { 4 }, 1e-4),
            Shape::Transformer { .. } => (1, 2e-5),
        };
        let folder = tempfile::tempdir()?;
        let weights = folder.path().join("weights.pt");
        let steps = if quick { 3 } else { 24 };
        let measured = model(shape, samples);
        let cut = cut_in_two(&vec![1.0; measured.layers()?])?;
        let schedule = Rule::OneForwardOneBackward;
        let piped = Way::Pipeline {
            cut: cut.clone(),
            schedule,
        };
        let mut curves = Vec::new();
        let alone = Way::OneDevice { threads: 1 };
        for (way, save, double) in [
            (alone.clone(), None, true),
            (alone, Some(weights.clone()), false),
            (piped, None, false),
        ] {
            let mut peer = Peer::start(&Task {
                way,
                micro_batches,
                rate: Some(rate),
                vary: true,
                save,
                double,
                ..self.task(shape, micro_batches * samples)
            })?;
            let losses = (0..steps).map(|_| Ok(peer.step()?.loss));
            curves.push(losses.collect::<Result<Vec<_>, Failure>>()?);
        }
        let plain = learning::Way::Plain { micro_batches };
        let piped = learning::Way::Piped(PipelineSettings::new(cut, micro_batches));
        for way in [plain, piped] {
            curves.push(measured.losses(&Learning {
                weights: weights.clone(),
                way,
                steps,
                rate,
            })?);
        }
        Ok(curves)
    }
}

/// The model on short sequences: what losses are to show is that numbers agree.
fn short(shape: Shape) -> Shape {
    match shape {
        Shape::Transformer {
            layers,
            d,
            heads,
            length,
        } => Shape::Transformer {
            layers,
            d,
            heads,
            length: length.min(32),
        },
        images => images,
    }
}

/// Whether our curves are near enough to the first, by the differences of all. NaN agrees with nothing.
fn are_alike(apart: &[f64]) -> bool {
    let (peer, ours) = apart.split_at(CURVES.len() - 2);
    let most = TIMES_PYTORCH * peer.iter().copied().fold(0.0, f64::max);
    ours.iter().all(|&apart| apart <= most.max(TOLERANCE))
}

/// The largest difference of two curves, as a share of the second.
fn difference(curve: &[f64], other: &[f64]) -> f64 {
    let apart = curve
        .iter()
        .zip(other)
        .map(|(a, b)| (a - b).abs() / b.abs());
    apart.fold(0.0, |most, apart| {
        if apart > most || apart.is_nan() {
            apart
        } else {
            most
        }
    })
}

fn losses_table(shape: Shape, curves: &[Vec<f64>]) -> Table {
    let columns = [
        column("step", "step", 0),
        column("pytorch_f64", CURVES[0], 5),
        column("pytorch_one_device", CURVES[1], 5),
        column("pytorch_two_stages", CURVES[2], 5),
        column("one_device", CURVES[3], 5),
        column("two_stages", CURVES[4], 5),
    ];
    let mut table = Table::new(format!("{}: losses", shape.name()), columns);
    for step in 0..curves[0].len() {
        let losses: Vec<_> = curves.iter().map(|curve| json!(curve[step])).collect();
        let row = [json!(step + 1)].into_iter().chain(losses);
        table.row(row.collect());
    }
    table
}

fn save_picture(folder: &Path, panels: &[Panel]) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    let title = "Losses from the same weights on the same mini-batches";
    let path = folder.join("peers.svg");
    fs::write(&path, draw(title, &CURVES, panels))?;
    println!("\nsaved in {}", path.display());
    Ok(())
}
