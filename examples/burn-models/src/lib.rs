//! Three models of Burn's examples, in one piece (`before`) and as layers of a pipeline (`after`).
//! Their `forward` stays as it is: it is what the pipeline is compared with.

#[expect(
    missing_docs,
    reason = "a module for each model, which says what it is"
)]
pub mod after {
    pub mod guide;
    pub mod mnist;
    pub mod regression;
}
