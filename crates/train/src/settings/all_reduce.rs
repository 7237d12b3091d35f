use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::AllReduce;

/// What adds up the gradients of replicas in several processes, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AllReduceSetting {
    /// A ring, in one order: the same bits in every run
    Ring,
    /// MPI_Iallreduce, in an order of its own: equal to 1e-5; a step that fails during it ends the job
    Mpi,
}

impl From<AllReduceSetting> for AllReduce {
    fn from(setting: AllReduceSetting) -> Self {
        match setting {
            AllReduceSetting::Ring => Self::Ring,
            AllReduceSetting::Mpi => Self::Mpi,
        }
    }
}
