//! What several tests need.

#![allow(dead_code)]

use stovepipe_schedule::{
    GPipe, Interleaved, OneForwardOneBackward, PipeDream, RoundRobin, Scheduler, ZeroBubbleH1,
    ZeroBubbleH2, ZeroBubbleV,
};

/// Every rule that gives the result of one device.
pub fn synchronous() -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(GPipe),
        Box::new(OneForwardOneBackward),
        Box::new(Interleaved { chunks: 1 }),
        Box::new(Interleaved { chunks: 2 }),
        Box::new(Interleaved { chunks: 3 }),
        Box::new(ZeroBubbleH1),
        Box::new(ZeroBubbleH2),
        Box::new(ZeroBubbleV),
        Box::new(RoundRobin::default()),
    ]
}

/// Every rule.
pub fn schedulers() -> Vec<Box<dyn Scheduler>> {
    let mut all = synchronous();
    all.push(Box::new(PipeDream::default()));
    all
}
