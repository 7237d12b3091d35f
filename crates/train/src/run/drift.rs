//! Notices workers that are slower than they were measured to be, next to the others.

use stovepipe_pipeline::{Measured, Stage};
use stovepipe_plan::cut_chain_by;
use stovepipe_schedule::{Span, SpanKind, Timeline, count};

use crate::settings::BalanceSetting;

/// So much longer than the fastest worker, relative to what was measured.
const MOST: f64 = 1.15;
/// In so many steps in a row.
const STEPS: usize = 20;

/// Compares the passes of each step with times of layers that were measured before.
pub(super) struct Drift {
    stages: Vec<Stage>,
    /// Seconds of each layer's passes, by worker.
    times: Vec<Vec<f64>>,
    /// The ratios of the last steps in a row in which a worker was slower, by worker.
    apart: Vec<Vec<f64>>,
    /// The workers that were named, and the cuts with them.
    said: Vec<(usize, Option<Vec<usize>>)>,
}

impl Drift {
    pub(super) fn new(measured: &Measured, stages: Vec<Stage>) -> Self {
        let workers = stages.iter().flat_map(|stage| &stage.replicas).max();
        let workers = workers.map_or(0, |last| last + 1);
        let times = (0..workers).map(|worker| {
            let layers = measured.profile(worker).layers.iter();
            layers.map(|layer| layer.forward + layer.backward).collect()
        });
        Self {
            times: times.collect(),
            apart: Vec::new(),
            said: Vec::new(),
            stages,
        }
    }

    /// Takes a step. Returns a line for the user if workers have drifted apart.
    pub(super) fn note(&mut self, timeline: &Timeline) -> Option<String> {
        // On a GPU, passes end later than their spans.
        let ratios = self.ratios(timeline).filter(|_| !timeline.host_time);
        let is_apart = |ratios: &Vec<f64>| slowest(ratios) > MOST * fastest(ratios);
        let Some(ratios) = ratios.filter(is_apart) else {
            self.apart.clear();
            return None;
        };
        self.apart.push(ratios);
        if self.apart.len() < STEPS {
            return None;
        }
        let apart = std::mem::take(&mut self.apart);
        let mean = |worker: usize| {
            let ratios = apart.iter().map(|ratios| ratios[worker]);
            ratios.sum::<f64>() / STEPS as f64
        };
        let ratios: Vec<_> = (0..apart[0].len()).map(mean).collect();
        let now: Vec<_> = (self.stages.iter())
            .map(|stage| stage.layers.len())
            .collect();
        let cut = self.best(&ratios).filter(|cut| *cut != now);
        let slowest = slowest(&ratios);
        let worker = ratios.iter().position(|&ratio| ratio == slowest)?;
        let line = (worker, cut.clone());
        if self.said.contains(&line) {
            return None;
        }
        self.said.push(line);
        let relative = slowest / fastest(&ratios);
        let cut = cut.map(BalanceSetting::Layers);
        let better = cut.map(|cut| format!(": by time, --balance {cut} would now be best"));
        Some(format!(
            "warning: in the last {}, passes of worker {worker} took {relative:.2} times as long as \
             measured before, compared with the fastest worker{}",
            count(STEPS, "step"),
            better.unwrap_or_default()
        ))
    }

    /// The passes of each worker, as multiples of what was measured. `None` if a worker had none.
    fn ratios(&self, timeline: &Timeline) -> Option<Vec<f64>> {
        let of_worker = |(spans, times): (&Vec<Span>, &Vec<f64>)| {
            let (mut found, mut expected) = (0.0, 0.0);
            for span in spans {
                found += match span.kind {
                    SpanKind::Forward
                    | SpanKind::Backward
                    | SpanKind::InputGradient
                    | SpanKind::WeightGradient => span.length().as_secs_f64(),
                    SpanKind::Recompute | SpanKind::AllReduce | SpanKind::Update => 0.0,
                };
                if span.kind == SpanKind::Forward {
                    let layers = self.stages.get(span.action?.stage)?.layers.clone();
                    expected += times.get(layers)?.iter().sum::<f64>();
                }
            }
            (expected > 0.0).then(|| found / expected)
        };
        timeline
            .workers
            .iter()
            .zip(&self.times)
            .map(of_worker)
            .collect()
    }

    /// The best cut if workers stay as slow as that, where each has one stage and each stage one worker.
    fn best(&self, ratios: &[f64]) -> Option<Vec<usize>> {
        let stages = &self.stages;
        let one_each = stages.len() == ratios.len();
        if !one_each || stages.iter().any(|stage| stage.replicas.len() != 1) {
            return None;
        }
        let cost = |stage: usize, layer: usize| {
            let worker = stages[stage].worker;
            ratios[worker] * self.times[worker][layer]
        };
        cut_chain_by(self.times.first()?.len(), stages.len(), cost).ok()
    }
}

fn slowest(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(0.0, f64::max)
}

fn fastest(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use stovepipe_pipeline::Pipeline;
    use stovepipe_plan::Profile;
    use stovepipe_schedule::{Action, Pass};

    use super::*;
    use crate::example::Dense;

    /// Eight layers that take a second each way, in two stages of four.
    fn drift() -> Drift {
        let layer =
            "[[layer]]\nname = \"a\"\nforward = 1.0\nbackward = 1.0\nparameters = 1\noutput = 1\n";
        let profile =
            Profile::from_toml(&format!("input = 1\nsamples = 1\n{}", layer.repeat(8))).unwrap();
        let layers: Vec<_> = (0..8).map(|_| Dense::new(2, 2)).collect();
        let builder = Pipeline::builder(layers).devices(vec![burn::tensor::Device::flex(); 2]);
        Drift::new(&profile.into(), builder.build().unwrap().stages())
    }

    /// A step of two micro-batches in which each pass takes these seconds, by worker.
    fn step(of_workers: [f64; 2]) -> Timeline {
        let mut timeline = Timeline::default();
        for (stage, seconds) in of_workers.into_iter().enumerate() {
            let span = |(kind, pass): (SpanKind, Pass), micro_batch| Span {
                action: Some(Action::new(stage, pass, micro_batch)),
                kind,
                start: Duration::ZERO,
                end: Duration::from_secs_f64(seconds),
                version: None,
            };
            let passes = [
                (SpanKind::Forward, Pass::Forward),
                (SpanKind::Recompute, Pass::Backward),
                (SpanKind::Backward, Pass::Backward),
            ];
            let spans = passes
                .into_iter()
                .flat_map(|own| [span(own, 0), span(own, 1)]);
            timeline.workers.push(spans.collect());
        }
        timeline
    }

    fn lines(drift: &mut Drift, steps: usize, of_workers: [f64; 2]) -> Vec<String> {
        let noted = (0..steps).filter_map(|_| drift.note(&step(of_workers)));
        noted.collect()
    }

    /// Six layers take 6 × 2 seconds, and two take 2 × 6.
    #[test]
    fn twenty_steps_of_a_slow_worker_are_said_once_with_the_best_cut() {
        let mut drift = drift();
        assert_eq!(lines(&mut drift, 19, [4.0, 12.0]), [""; 0]);
        let said = "warning: in the last 20 steps, passes of worker 1 took 3.00 times as long as measured \
                    before, compared with the fastest worker: by time, --balance 6,2 would now be best";
        assert_eq!(lines(&mut drift, 1, [4.0, 12.0]), [said]);
        assert_eq!(lines(&mut drift, 100, [4.0, 12.0]), [""; 0]);
        let other = lines(&mut drift, 20, [12.0, 4.0]);
        assert!(
            other[0].ends_with("--balance 2,6 would now be best"),
            "{other:?}"
        );
    }

    /// Equally slow workers need no other cut, nor do those that are slow for a moment or by little.
    #[test]
    fn little_is_not_said() {
        let mut drift = drift();
        assert_eq!(lines(&mut drift, 100, [12.0, 12.0]), [""; 0]);
        assert_eq!(lines(&mut drift, 100, [4.0, 4.5]), [""; 0]);
        for _ in 0..10 {
            assert_eq!(lines(&mut drift, 19, [4.0, 12.0]), [""; 0]);
            assert_eq!(lines(&mut drift, 1, [4.0, 4.0]), [""; 0]);
        }
    }

    /// A layer is a quarter of a stage: the cut stays the best.
    #[test]
    fn a_worker_is_named_without_a_better_cut() {
        let lines = lines(&mut drift(), 100, [4.0, 4.7]);
        let end = "took 1.18 times as long as measured before, compared with the fastest worker";
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with(end), "{lines:?}");
    }

    #[test]
    fn times_of_launches_say_nothing() {
        let mut drift = drift();
        for _ in 0..100 {
            let mut step = step([4.0, 12.0]);
            step.host_time = true;
            assert_eq!(drift.note(&step), None);
        }
    }
}
