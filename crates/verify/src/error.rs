use stovepipe_pipeline::{BuildError, error::ProcessError};
use stovepipe_schedule::count;
use thiserror::Error;

/// Why nothing could be verified.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// No pipeline can be built from the layers.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Another process has ended, or has another model or batch.
    #[error(transparent)]
    Processes(#[from] ProcessError),
    /// The verifier was made of a pipeline over several processes.
    #[error(
        "the pipeline lies in several processes, each with the parameters of its own layers alone: \
         give all layers to `Verifier::new`, and the communicator to the verifier"
    )]
    InParts,
    /// Each process needs a stage.
    #[error(
        "{} for {processes} processes: each needs at least one: allow more stages, or start fewer \
         processes",
        count(*stages, "stage")
    )]
    FewStages {
        /// The largest number of stages that the model has, or that was set.
        stages: usize,
        /// The number of processes.
        processes: usize,
    },
}
