//! Models that lie in several processes, for which threads stand here.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Int, Tensor},
};
use stovepipe_comm::{Communicator, local};
use stovepipe_pipeline::{
    Batch, Context, CrossEntropy, Flow, FlowMapper, Layer, LayerError, NamedDevice, Objective,
    Packed, Pipeline, error::PackError,
};
use stovepipe_verify::{Report, Verifier, VerifyError};

use crate::palette::{cpu, labels, linear, pattern};

/// What each rank returns.
fn ranks<R: Send>(size: usize, of_rank: impl Fn(Arc<Communicator>) -> R + Sync) -> Vec<R> {
    ranks_with(vec![(); size], |comm, ()| of_rank(comm))
}

/// Held while a test needs Burn's generator for itself: ranks draw the same parameters only if no layer
/// draws from it elsewhere in the process.
pub fn generator() -> MutexGuard<'static, ()> {
    static GENERATOR: Mutex<()> = Mutex::new(());
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What each rank makes of what it is given.
fn ranks_with<S: Send, R: Send>(
    given: Vec<S>,
    of_rank: impl Fn(Arc<Communicator>, S) -> R + Sync,
) -> Vec<R> {
    let _alone = generator();
    let comms = local(given.len(), None).unwrap();
    let of_rank = &of_rank;
    thread::scope(|scope| {
        let ranks: Vec<_> = (comms.into_iter().zip(given))
            .map(|(comm, given)| scope.spawn(move || of_rank(comm.into(), given)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The report of so many ranks, each of which makes a verifier of what it is given.
pub fn report<S, L, T, O>(
    size: usize,
    given: S,
    verifier: impl Fn(S) -> Verifier<L, T, O> + Sync,
) -> Report
where
    S: Clone + Send,
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let of_rank = |comm, given| verifier(given).communicator(comm).run().unwrap();
    let reports = ranks_with(vec![given; size], of_rank);
    assert!(reports.iter().all(|report| *report == reports[0]));
    reports.into_iter().next().unwrap()
}

/// What each of two ranks says of a verifier that cannot run.
fn errors<L, T, O>(verifier: impl Fn(&Arc<Communicator>) -> Verifier<L, T, O> + Sync) -> Vec<String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let run = |comm: Arc<Communicator>| verifier(&comm).communicator(comm).run();
    let said = |result: Result<Report, VerifyError>| result.unwrap_err().to_string();
    ranks(2, run).into_iter().map(said).collect()
}

/// A value that changes on its way to another process, and may not be packed at all.
#[derive(Clone)]
struct Scaled<const PACKS: bool>(Tensor<2>);

impl<const PACKS: bool> Flow for Scaled<PACKS> {
    const PACKS: bool = PACKS;

    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        Self(mapper.float(self.0))
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.0.batch_sizes(sizes);
    }

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        self.0.pack(into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        Ok(Self(Tensor::unpack(from, device)?.mul_scalar(1.001)))
    }
}

#[derive(Module, Debug)]
struct Dense<const PACKS: bool> {
    linear: Linear,
}

impl<const PACKS: bool> Layer for Dense<PACKS> {
    type Input = Tensor<2>;
    type Flow = Scaled<PACKS>;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<2>) -> Scaled<PACKS> {
        Scaled(input)
    }

    fn forward(
        &self,
        x: Scaled<PACKS>,
        _: &mut Context<'_, Self>,
    ) -> Result<Scaled<PACKS>, LayerError> {
        Ok(Scaled(self.linear.forward(x.0).tanh()))
    }

    fn leave(flow: Scaled<PACKS>) -> Result<Tensor<2>, LayerError> {
        Ok(flow.0)
    }
}

fn batch(samples: usize) -> Batch<Tensor<2>, Tensor<1, Int>> {
    Batch::new(pattern([samples, 4]), labels([samples], 4))
}

fn dense<const PACKS: bool>() -> Vec<Dense<PACKS>> {
    let layer = |()| Dense {
        linear: linear(4, 4),
    };
    [(); 3].map(layer).to_vec()
}

fn verifier<const PACKS: bool>() -> Verifier<Dense<PACKS>, Tensor<1, Int>, CrossEntropy> {
    Verifier::new(dense(), batch(5), CrossEntropy::new()).micro_batches([2])
}

#[test]
fn a_value_that_changes_between_processes_is_found() {
    let alone = verifier::<true>().run().unwrap();
    assert!(alone.holds(), "{alone}");
    for size in [2, 3] {
        let found = report(size, (), |()| verifier::<true>());
        let failing: Vec<_> = crate::broken::failing(&found);
        for check in ["same bits", "whole mini-batch", "evaluation"] {
            assert!(failing.contains(&check), "{found}");
        }
        assert!(found.to_string().contains(", in rank "), "{found}");
    }
}

#[test]
fn what_cannot_be_verified_in_processes_is_one_line() {
    let check = |errors: Vec<String>, says: &[&str]| {
        for error in errors {
            let is_said = says.iter().all(|part| error.contains(part));
            assert!(is_said && !error.contains('\n'), "{error}");
        }
    };
    let differs =
        |of_rank: fn(usize) -> Verifier<_, _, _>| errors(move |comm| of_rank(comm.rank()));
    check(
        differs(|rank| Verifier::new(dense::<true>(), batch(5 + rank), CrossEntropy::new())),
        &[
            "the fingerprint of the batch is ",
            "all processes need the same",
        ],
    );
    check(
        differs(|rank| verifier().seed(rank as u64)),
        &["the fingerprint of 0.linear.weight is ", "for rank "],
    );
    check(
        differs(|rank| verifier().micro_batches([2 + rank])),
        &["the numbers of micro-batches is {", "for rank "],
    );
    check(
        differs(|_| verifier().stages([1])),
        &["1 stage for 2 processes: each needs at least one"],
    );
    check(
        errors(|_| verifier::<false>()),
        &["cannot be sent to another process"],
    );
    let of_parts = |comm: &Arc<Communicator>| {
        let devices = ["0/cpu", "1/cpu"].map(|name| name.parse::<NamedDevice>().unwrap());
        let builder = Pipeline::builder(dense::<true>()).devices(devices);
        let pipeline = builder.communicator(comm.clone()).build().unwrap();
        Verifier::of(&pipeline, batch(5), CrossEntropy::new())
    };
    check(
        errors(of_parts),
        &["each with the parameters of its own layers alone: give all layers"],
    );
    // Of one process, there is no difference.
    let pipeline = Pipeline::builder(dense::<true>()).devices([cpu()]);
    let pipeline = pipeline.build().unwrap();
    let verifier = Verifier::of(&pipeline, batch(5), CrossEntropy::new());
    assert!(
        verifier
            .micro_batches([2])
            .stages([2])
            .run()
            .unwrap()
            .holds()
    );
}

#[test]
fn a_rank_that_leaves_ends_the_others() {
    let left = ranks(3, |comm| {
        (comm.rank() != 1).then(|| verifier::<true>().communicator(comm).run().unwrap_err())
    });
    for error in [&left[0], &left[2]] {
        let error = error.as_ref().unwrap().to_string();
        assert!(error.contains("rank 1 on localhost has left"), "{error}");
    }
}
