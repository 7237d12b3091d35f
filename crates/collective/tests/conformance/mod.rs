//! What every group must do. All its ranks call `run` or `check`, each with its own.

use std::{fmt::Debug, sync::Arc};

use half::{bf16, f16};
use stovepipe_collective::{Group, Number, Reduction};
use stovepipe_comm::Communicator;

/// A call, and the tensors that it is for.
#[derive(Clone, Debug)]
pub struct Case {
    pub call: Call,
    pub lengths: Vec<usize>,
    /// Each bucket has so many tensors; the last one has the rest.
    pub per_bucket: usize,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Call {
    AllReduce(Reduction),
    /// In two halves.
    Halves(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    /// From a rank, modulo the number of ranks.
    Broadcast(usize),
}

/// A number as the plain loop of these tests needs it.
pub trait Tested: Number {
    fn of(number: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    /// Their sum, divided by a count before it is rounded.
    fn mean(self, other: Self, count: usize) -> Self;
    fn bits(self) -> u64;
}

impl Tested for f32 {
    fn of(number: f64) -> Self {
        number as Self
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn mean(self, other: Self, count: usize) -> Self {
        (self + other) / count as Self
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Tested for f64 {
    fn of(number: f64) -> Self {
        number
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn mean(self, other: Self, count: usize) -> Self {
        (self + other) / count as Self
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Tested for bf16 {
    fn of(number: f64) -> Self {
        Self::from_f64(number)
    }
    fn plus(self, other: Self) -> Self {
        Self::from_f32(f32::from(self) + f32::from(other))
    }
    fn mean(self, other: Self, count: usize) -> Self {
        Self::from_f32((f32::from(self) + f32::from(other)) / count as f32)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Tested for f16 {
    fn of(number: f64) -> Self {
        Self::from_f64(number)
    }
    fn plus(self, other: Self) -> Self {
        Self::from_f32(f32::from(self) + f32::from(other))
    }
    fn mean(self, other: Self, count: usize) -> Self {
        Self::from_f32((f32::from(self) + f32::from(other)) / count as f32)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

/// All types, calls and lengths that matter, also such that have many pieces.
pub fn run(comm: &Arc<Communicator>) {
    let all: Vec<_> = (0..comm.size()).collect();
    let mut group = Group::new(comm.clone(), 1, &all).unwrap();
    let (sum, mean) = (Reduction::Sum, Reduction::Mean);
    let calls = [
        Call::AllReduce(sum),
        Call::AllReduce(mean),
        Call::Halves(sum),
        Call::Halves(mean),
        Call::ReduceScatter(sum),
        Call::ReduceScatter(mean),
        Call::AllGather,
        Call::Broadcast(0),
        Call::Broadcast(comm.size() - 1),
    ];
    let lengths = [
        vec![],
        vec![0],
        vec![1],
        vec![comm.size() - 1, 0, comm.size() + 1],
        vec![1000; 17],
    ];
    for (index, call) in calls.into_iter().enumerate() {
        for lengths in &lengths {
            for per_bucket in [2, 100] {
                let case = Case {
                    call,
                    lengths: lengths.clone(),
                    per_bucket,
                    seed: index as u64,
                };
                check::<f32>(comm, &mut group, &case);
                check::<f64>(comm, &mut group, &case);
                check::<bf16>(comm, &mut group, &case);
                check::<f16>(comm, &mut group, &case);
            }
        }
    }
    // Many pieces.
    for (call, length) in [
        (Call::AllReduce(sum), 4_200_003),
        (Call::Halves(mean), 1_100_003),
        (Call::Broadcast(1), 1_400_003),
    ] {
        let case = Case {
            call,
            lengths: vec![3, length, 12, 0, 50_000],
            per_bucket: 100,
            seed: 7,
        };
        check::<f32>(comm, &mut group, &case);
    }
}

/// The call's results have the bits of a plain loop, and no byte too many is sent.
pub fn check<T: Tested>(comm: &Communicator, group: &mut Group, case: &Case) {
    let (own, ranks) = (group.rank(), group.size());
    let given = |rank| values::<T>(case, rank);
    let mut tensors = given(own);
    let before = comm.bytes_sent();
    let mut expected_bytes = Bytes::default();
    for (number, bucket) in tensors.chunks_mut(case.per_bucket).enumerate() {
        let mut bucket: Vec<_> = bucket.iter_mut().map(Vec::as_mut_slice).collect();
        expected_bytes.add::<T>(case.call, own, ranks, &bucket);
        let (number, bucket) = (number as u64, &mut bucket[..]);
        match case.call {
            Call::AllReduce(reduction) => group.all_reduce(number, bucket, reduction),
            Call::Halves(reduction) => group
                .reduce_scatter(number, bucket, reduction)
                .and_then(|()| group.all_gather(number, bucket)),
            Call::ReduceScatter(reduction) => group.reduce_scatter(number, bucket, reduction),
            Call::AllGather => group.all_gather(number, bucket),
            Call::Broadcast(root) => group.broadcast(number, bucket, root % ranks),
        }
        .unwrap();
    }
    expected_bytes.check(comm.bytes_sent() - before);
    let all: Vec<_> = (0..ranks).map(given).collect();
    for (tensor, result) in tensors.iter().enumerate() {
        let of_rank = |rank: usize| &all[rank][tensor][..];
        for (index, number) in result.iter().enumerate() {
            let expected = expected(case.call, (own, ranks), index, of_rank);
            assert_eq!(
                number.bits(),
                expected.bits(),
                "{case:?}: number {index} of tensor {tensor} at rank {own} of {ranks}: \
                 {number:?}, not {expected:?}"
            );
        }
    }
}

/// A number by a plain loop. `x` has the tensor of each rank.
fn expected<'a, T: Tested>(
    call: Call,
    (own, ranks): (usize, usize),
    index: usize,
    x: impl Fn(usize) -> &'a [T],
) -> T {
    let owner = owner(x(own).len(), index, ranks);
    match call {
        Call::AllReduce(reduction) | Call::Halves(reduction) => {
            sum(owner, ranks, reduction, |r| x(r)[index])
        }
        Call::ReduceScatter(reduction) if own == owner => {
            sum(owner, ranks, reduction, |r| x(r)[index])
        }
        Call::ReduceScatter(_) => x(own)[index],
        Call::AllGather => x(owner)[index],
        Call::Broadcast(root) => x(root % ranks)[index],
    }
}

/// From the rank after the owner on, to the owner.
fn sum<T: Tested>(owner: usize, ranks: usize, reduction: Reduction, x: impl Fn(usize) -> T) -> T {
    let mut sum = x((owner + 1) % ranks);
    for passed in 2..=ranks {
        let own = x((owner + passed) % ranks);
        sum = match reduction {
            Reduction::Mean if passed == ranks => sum.mean(own, ranks),
            _ => sum.plus(own),
        };
    }
    sum
}

/// Whose slice a number of a tensor is in. The first slices are longer by one, if some are.
fn owner(length: usize, index: usize, ranks: usize) -> usize {
    let mut end = 0;
    for rank in 0..ranks {
        end += length / ranks;
        if rank < length % ranks {
            end += 1;
        }
        if index < end {
            return rank;
        }
    }
    unreachable!()
}

/// Numbers whose sum depends on the order of addition.
fn values<T: Tested>(case: &Case, rank: usize) -> Vec<Vec<T>> {
    let mut state = (case.seed << 16) + rank as u64 + 1;
    let mut next = move || {
        // Knuth's generator; its upper bits are good.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    let mut number = move || T::of(next() * next() / (next().abs() + 0.01));
    let tensors = case.lengths.iter();
    tensors
        .map(|length| (0..*length).map(|_| number()).collect())
        .collect()
}

/// What a rank may send.
#[derive(Default)]
struct Bytes {
    exactly: f64,
    /// Slices of a tensor differ by one number.
    off_by: f64,
}

impl Bytes {
    fn add<T>(&mut self, call: Call, own: usize, ranks: usize, bucket: &[&mut [T]]) {
        if ranks == 1 {
            return;
        }
        let size = size_of::<T>() as f64;
        let k: f64 = bucket.iter().map(|tensor| tensor.len() as f64 * size).sum();
        let (n, header) = (ranks as f64, (8 * (6 + ranks + bucket.len())) as f64);
        let half = k * (n - 1.0) / n;
        let uneven = bucket.iter().filter(|tensor| tensor.len() % ranks != 0);
        let uneven = uneven.count() as f64 * size;
        let (exactly, off_by) = match call {
            Call::AllReduce(_) => (2.0 * half + header, 2.0 * uneven),
            Call::Halves(_) => (2.0 * (half + header), 2.0 * uneven),
            Call::ReduceScatter(_) | Call::AllGather => (half + header, uneven),
            Call::Broadcast(root) if (own + 1) % ranks == root % ranks => (header, 0.0),
            Call::Broadcast(_) => (k + header, 0.0),
        };
        self.exactly += exactly;
        self.off_by += off_by;
    }

    fn check(&self, sent: u64) {
        let off = (sent as f64 - self.exactly).abs();
        assert!(
            off <= self.off_by + 1e-6 * self.exactly,
            "{sent} bytes were sent, not {} ± {}",
            self.exactly,
            self.off_by
        );
    }
}
