//! A backward pass takes longer the more tapes are alive, though it does not touch them.
//!
//! After each backward pass, Burn 0.22.1 clones the map of all live nodes of the process and visits each
//! (`cleanup_orphaned_entries` in `burn-autodiff`). While it clones, no thread can record an operation. A
//! visit of each graph instead of each node would do: nodes of a graph share it.

use std::time::Instant;

use burn::tensor::{Device, Tensor};

/// Operations of a tape that waits for its backward pass.
const OPERATIONS: usize = 12;
const ROUNDS: usize = 200;

fn main() {
    println!("live tapes  live nodes  µs for the backward pass of one operation");
    for tapes in [0, 16, 64, 256, 1024] {
        let live: Vec<_> = (0..tapes).map(|_| tape(OPERATIONS)).collect();
        let mut microseconds: Vec<_> = (0..ROUNDS).map(|_| backward()).collect();
        microseconds.sort_by(f64::total_cmp);
        let nodes = tapes * (1 + OPERATIONS);
        println!("{tapes:10}  {nodes:10}  {:.1}", microseconds[ROUNDS / 2]);
        drop(live);
    }
}

fn tape(operations: usize) -> Tensor<1> {
    let leaf = Tensor::<1>::ones([1], &Device::flex().autodiff()).require_grad();
    (0..operations).fold(leaf, |x, _| x * 1.5)
}

/// The time of a backward pass.
fn backward() -> f64 {
    let y = tape(1);
    let began = Instant::now();
    drop(y.backward());
    1e6 * began.elapsed().as_secs_f64()
}
