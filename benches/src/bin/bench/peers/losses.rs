//! Losses, which have to equal PyTorch's.

use std::path::Path;

use stovepipe::schedule::Rule;
use stovepipe_benches::{
    Failure,
    bench_progress::BenchProgress,
    curves::{CurvePanel, draw},
    layers::cut_in_two,
    learning::{Learning, LoopKind},
    models::model,
    peer::{Peer, PeerSetup, PeerTask},
    piped::PipedSettings,
    recipe::ModelShape,
    report::{ReportTable, cell, exact_cell, save_file},
};

use super::{Peers, shapes};

/// The accepted difference of losses from those in double precision, as a share of them. Sums in
/// another order differ in the seventh digit, and every update increases the difference: of small
/// gradients AdamW uses little but the sign.
const TOLERANCE: f64 = 0.01;
/// Where rounding moves PyTorch's losses farther, the accepted multiple of its difference.
const TIMES_PYTORCH: f64 = 2.0;

/// The names of the curves. PyTorch's come first; all are compared with the first of them.
const CURVES: [&str; 5] = [
    "PyTorch, f64",
    "PyTorch, one device",
    "PyTorch, two stages",
    "ours, one device",
    "ours, two stages",
];

/// Their keys in JSON.
const KEYS: [&str; 5] = [
    "pytorch_f64",
    "pytorch_one_device",
    "pytorch_two_stages",
    "one_device",
    "two_stages",
];

impl Peers<'_> {
    /// Runs five trainings from the same weights on the same mini-batches.
    pub(crate) fn losses(&mut self) -> Result<(), Failure> {
        if self.flags.alone {
            let note = "Without PyTorch there are no losses to compare with.";
            self.report.note(note);
            return Ok(());
        }
        let title = format!("losses next to {}'s, as shares of them", CURVES[0]);
        let mut summary = ReportTable::new(title);
        let (mut panels, mut different) = (Vec::new(), Vec::new());
        let shapes = shapes(&self.flags.arguments);
        let mut progress = BenchProgress::new(shapes.len());
        for shape in shapes {
            let shape = short(shape);
            let curves = self.curves(shape)?;
            progress.done(&format!("losses of {}", shape.name()));
            self.report.table(losses_table(shape, &curves));
            let differences = curves.iter().map(|curve| difference(curve, &curves[0]));
            let differences: Vec<_> = differences.collect();
            if !are_close(&differences) {
                different.push(shape.name());
            }
            for ((name, curve), difference) in CURVES.iter().zip(&curves).zip(differences) {
                summary.row([
                    cell("model", "model", 0, shape.name()),
                    cell("curve", "curve", 0, *name),
                    cell("first", "first loss", 4, curve.first().copied()),
                    cell("last", "last loss", 4, curve.last().copied()),
                    cell("largest_difference", "largest difference", 6, difference),
                ]);
            }
            let title = shape.name().to_owned();
            panels.push(CurvePanel {
                title,
                curves,
                axis: ("step", 1.0),
            });
        }
        self.report.table(summary);
        save_picture(&self.flags.arguments.out, &panels)?;
        if !different.is_empty() {
            let models = different.join(" and ");
            let how =
                format!("by more than {TOLERANCE} of themselves, and much more than PyTorch's");
            return Err(
                format!("losses of {models} differ {how} do: the work is not the same").into(),
            );
        }
        Ok(())
    }

    fn curves(&self, shape: ModelShape) -> Result<Vec<Vec<f64>>, Failure> {
        let quick = self.flags.arguments.quick;
        let micro_batches = if quick { 2 } else { 8 };
        let (samples, rate) = match shape {
            ModelShape::Amoebanet { large, .. } => (if large && !quick { 1 } else { 4 }, 1e-4),
            ModelShape::Transformer { .. } => (1, 2e-5),
        };
        let folder = tempfile::tempdir()?;
        let weights = folder.path().join("weights.pt");
        let steps = if quick { 3 } else { 24 };
        let measured = model(shape, samples);
        let cut = cut_in_two(&vec![1.0; measured.layers()?])?;
        let alone = PeerSetup::OneDevice { threads: 1 };
        let piped = PeerSetup::Pipeline {
            cut: cut.clone(),
            schedule: Rule::OneForwardOneBackward,
            replicas: 1,
        };
        let mut curves = Vec::new();
        for (setup, save, double) in [
            (alone.clone(), None, true),
            (alone, Some(weights.clone()), false),
            (piped, None, false),
        ] {
            let mut peer = Peer::start(&PeerTask {
                micro_batches,
                rate: Some(rate),
                vary: true,
                save,
                double,
                ..self.task(shape, micro_batches * samples, setup)
            })?;
            let losses = (0..steps).map(|_| Ok(peer.step()?.loss));
            curves.push(losses.collect::<Result<Vec<_>, Failure>>()?);
        }
        let plain = LoopKind::Plain { micro_batches };
        let piped = LoopKind::Piped(PipedSettings::new(cut, micro_batches));
        for kind in [plain, piped] {
            curves.push(measured.losses(&Learning {
                weights: weights.clone(),
                kind,
                steps,
                rate,
            })?);
        }
        Ok(curves)
    }
}

/// The model on short sequences, which are enough to compare losses.
fn short(mut shape: ModelShape) -> ModelShape {
    if let ModelShape::Transformer { length, .. } = &mut shape {
        *length = (*length).min(32);
    }
    shape
}

/// Whether our curves are close enough to the first, by the differences of all. NaN is not.
fn are_close(differences: &[f64]) -> bool {
    let (peer, ours) = differences.split_at(CURVES.len() - 2);
    let of_peer = peer.iter().copied().fold(0.0, f64::max);
    let accepted = (TIMES_PYTORCH * of_peer).max(TOLERANCE);
    ours.iter().all(|&difference| difference <= accepted)
}

/// The largest difference of two curves, as a share of the second; NaN if any is.
fn difference(curve: &[f64], other: &[f64]) -> f64 {
    let pairs = curve.iter().zip(other);
    let shares = pairs.map(|(a, b)| (a - b).abs() / b.abs());
    shares.fold(0.0, |largest, share| {
        if share > largest || share.is_nan() {
            share
        } else {
            largest
        }
    })
}

fn losses_table(shape: ModelShape, curves: &[Vec<f64>]) -> ReportTable {
    let mut table = ReportTable::new(format!("{}: losses", shape.name()));
    for step in 0..curves[0].len() {
        let columns = KEYS.into_iter().zip(CURVES).zip(curves);
        let losses = columns.map(|((key, name), curve)| exact_cell(key, name, 5, curve[step]));
        let row = std::iter::once(cell("step", "step", 0, step + 1)).chain(losses);
        table.row(row.collect::<Vec<_>>());
    }
    table
}

fn save_picture(folder: &Path, panels: &[CurvePanel]) -> Result<(), Failure> {
    let title = "Losses from the same weights on the same mini-batches";
    save_file(folder, "peers.svg", &draw(title, &CURVES, panels))
}
