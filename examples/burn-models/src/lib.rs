//! Three models of Burn's examples, in one piece (`before`) and as layers of a pipeline (`after`).
//! Their `forward` does not change: tests compare the pipeline with it.

#[expect(missing_docs, reason = "the modules have their own docs")]
pub mod after {
    pub mod guide;
    pub mod mnist;
    pub mod regression;
}
