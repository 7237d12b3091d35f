//! Models and objectives whose faults must be found.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{ThreadId, current},
};

use burn::{
    module::Module,
    nn::{DropoutConfig, Linear, LinearConfig},
    tensor::{Int, Tensor},
};
use stovepipe_pipeline::{
    Batch, Context, CrossEntropy, Layer, LayerError, Objective, flows::attach,
};
use stovepipe_verify::{Outcome, Report, Verifier};

use self::Breakage::*;
use crate::{
    palette::{cpu, labels, pattern},
    ranks,
};

#[derive(Module, Debug)]
struct Wrong {
    linear: Linear,
    dropout: burn::nn::Dropout,
    #[module(skip)]
    wrong: Breakage,
    #[module(skip)]
    runs: Arc<AtomicUsize>,
    /// What each worker computed of the weights.
    #[module(skip)]
    factors: Arc<Mutex<HashMap<ThreadId, Tensor<2>>>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Breakage {
    Nothing,
    /// Draws from Burn's generator.
    Unkeyed,
    /// Counts its runs.
    Counting,
    /// Computes something else when it is recorded.
    Recorded,
    /// Reads the other samples.
    Mixing,
    /// Occurs only on the second worker.
    Named,
    /// Fails there.
    Failing,
    /// Uses what a worker computed of the weights when it last ran without a tape.
    Stale,
}

impl Layer for Wrong {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<2>) -> Tensor<2> {
        input
    }

    fn forward(
        &self,
        x: Tensor<2>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<2>, LayerError> {
        let y = self.linear.forward(x.clone()).tanh();
        let is_named = || current().name() == Some("worker-1");
        Ok(match self.wrong {
            Unkeyed => self.dropout.forward(y),
            Counting => {
                let run = self.runs.fetch_add(1, Ordering::SeqCst);
                y.mul_scalar(1.0 + 1e-3 * run as f64)
            }
            Recorded if context.is_training() && !y.is_tracked() => y.mul_scalar(1.01),
            Mixing => y.clone() - y.mean_dim(0),
            Named if is_named() => y.mul_scalar(1.01),
            Failing if is_named() => return Err(LayerError::new("another worker", "worker-1")),
            Stale => y.mul(self.factor(x.is_tracked())),
            Nothing | Recorded | Named | Failing => y,
        })
    }

    fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(flow)
    }
}

impl Wrong {
    /// A factor that has no gradient.
    fn factor(&self, is_recorded: bool) -> Tensor<2> {
        let weight = self.linear.weight.val();
        let like = |factor: Tensor<2>| match weight.is_autodiff() {
            true => attach(factor, false),
            false => factor,
        };
        let newest = weight
            .clone()
            .inner()
            .mean()
            .add_scalar(1.0)
            .reshape([1, 1]);
        let is_worker = current()
            .name()
            .is_some_and(|name| name.starts_with("worker-"));
        if !is_worker {
            return like(newest);
        }
        let mut factors = self.factors.lock().unwrap();
        let factor = match factors.get(&current().id()) {
            Some(kept) if is_recorded => kept.clone(),
            _ => newest,
        };
        if !is_recorded {
            factors.insert(current().id(), factor.clone());
        }
        like(factor)
    }
}

fn verify(wrong: Breakage, objective: impl Objective<Tensor<2>, Tensor<1, Int>>) -> Report {
    verifier(wrong, objective).run().unwrap()
}

fn verifier<O: Objective<Tensor<2>, Tensor<1, Int>>>(
    wrong: Breakage,
    objective: O,
) -> Verifier<Wrong, Tensor<1, Int>, O> {
    let layers = (0..3).map(|index| Wrong {
        linear: LinearConfig::new(4, 4).init(&cpu()),
        dropout: DropoutConfig::new(0.5).init(),
        wrong: if index == 1 { wrong } else { Nothing },
        runs: Arc::default(),
        factors: Arc::default(),
    });
    let batch = Batch::new(pattern([7, 4]), labels([7], 4));
    let verifier = Verifier::new(layers.collect(), batch, objective);
    verifier.micro_batches([1, 3]).allow_unkeyed(true)
}

pub fn failing(report: &Report) -> Vec<&'static str> {
    let checks = report.checks.iter();
    let fails = checks.filter(|check| matches!(check.verdict, Outcome::Fails(_)));
    fails.map(|check| check.name).collect()
}

/// Another test may seed Burn's generator, which the process shares, at the very moment at which a layer
/// draws from it. So there is a second and a third try.
fn until_found(check: &str, run: impl Fn() -> Report) -> Report {
    let tries = (0..2).map(|_| run());
    let found = tries
        .into_iter()
        .find(|report| failing(report).contains(&check));
    found.unwrap_or_else(run)
}

#[test]
fn each_fault_is_found_and_named() {
    let sound = verify(Nothing, CrossEntropy::new());
    assert!(sound.holds(), "{sound}");
    for (wrong, check, hint) in [
        (Unkeyed, "repeatable", "random numbers that are not keyed"),
        (Counting, "repeatable", "keeps something between runs"),
        (Recorded, "same bits", "when it runs again"),
        (Mixing, "whole mini-batch", "reads other samples"),
        (Mixing, "evaluation", "reads other samples"),
        (Named, "same bits", "step 1"),
    ] {
        let report = until_found(check, || {
            let _alone = matches!(wrong, Unkeyed).then(ranks::generator);
            verify(wrong, CrossEntropy::new())
        });
        assert!(!report.holds());
        assert!(failing(&report).contains(&check), "{wrong:?}\n{report}");
        let text = report.to_string();
        assert!(text.contains("FAILS") && text.contains(hint), "{text}");
    }
}

/// All passes of a synchronous step have the same weights, so no other check can find it.
#[test]
fn only_windows_find_what_was_computed_of_other_weights() {
    let report = verify(Stale, CrossEntropy::new());
    assert_eq!(failing(&report), ["windows"], "{report}");
    let text = report.to_string();
    assert!(
        text.contains("other weights") && text.contains("pipedream"),
        "{text}"
    );
}

#[test]
fn a_fault_in_one_process_is_found_in_all() {
    let in_ranks = |wrong| {
        let verifier = |wrong| verifier(wrong, CrossEntropy::new());
        ranks::report(3, wrong, verifier)
    };
    let sound = in_ranks(Nothing);
    assert!(sound.holds(), "{sound}");
    for (wrong, check, says) in [
        (Named, "same bits", ", in rank "),
        (
            Failing,
            "same bits",
            ": rank 1 on localhost failed: stage 1 failed on 1/cpu",
        ),
        (Unkeyed, "repeatable", "random numbers that are not keyed"),
        (Mixing, "evaluation", "reads other samples"),
    ] {
        let mut report = until_found(check, || in_ranks(wrong));
        assert!(failing(&report).contains(&check), "{wrong:?}\n{report}");
        // With replicas, other ranks have the faulty worker.
        report.checks.retain(|check| check.name != "replicas");
        let text = report.to_string();
        assert!(text.contains(says), "{wrong:?}\n{text}");
        // Those that failed because of another are not named.
        assert!(!text.contains("rank 0 on localhost failed"), "{text}");
    }
}

/// Returns the mean over a micro-batch as a sum: right for one micro-batch, wrong for several.
#[derive(Clone)]
struct MeanForSum(CrossEntropy);

impl Objective<Tensor<2>, Tensor<1, Int>> for MeanForSum {
    fn loss(&self, output: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
        let samples = target.dims()[0] as f64;
        let sum = self.0.loss(output, target);
        sum.div_scalar(samples).mul_scalar(7.0)
    }

    fn weight(&self, target: &Tensor<1, Int>) -> f64 {
        self.0.weight(target)
    }
}

#[test]
fn a_loss_that_is_weighted_wrongly_is_found() {
    let report = verify(Nothing, MeanForSum(CrossEntropy::new()));
    assert_eq!(failing(&report), ["whole mini-batch"], "{report}");
    assert!(report.to_string().contains("`weight`"));
}
