//! The processes that verify a model together.
//!
//! Each has its own layers of the pipeline, and all layers of what that is compared with. It compares what it
//! has, and they tell each other what they found, so all have the same report.

use std::sync::Arc;

use burn::tensor::Device;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stovepipe_comm::{Communicator, ProcessError, Terms, Wait, gather};
use stovepipe_pipeline::NamedDevice;

use crate::{
    case::CaseError,
    snapshot::{Comparison, Difference},
};

/// One process by itself without a communicator.
#[derive(Clone, Default)]
pub(crate) struct Processes(Option<Arc<Communicator>>);

/// Why a process has nothing to compare.
#[derive(Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    /// Whether it failed because another process did.
    pub(crate) is_of_other: bool,
}

impl Processes {
    pub(crate) fn new(communicator: Arc<Communicator>) -> Self {
        Self(Some(communicator))
    }

    pub(crate) fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |comm| comm.size())
    }

    /// What connects the processes of a pipeline with so many workers. One with fewer workers than there are
    /// processes lies in this process alone.
    pub(crate) fn of_workers(&self, workers: usize) -> Option<&Arc<Communicator>> {
        self.0.as_ref().filter(|comm| workers >= comm.size())
    }

    /// The device of each worker. Neighbours are in one process.
    pub(crate) fn devices(&self, device: &Device, workers: usize) -> Vec<NamedDevice> {
        let own = NamedDevice::from(device.clone());
        let Some(comm) = self.of_workers(workers) else {
            return vec![own; workers];
        };
        let of_worker = |worker| {
            let process = worker * comm.size() / workers;
            NamedDevice {
                name: format!("{process}/{}", own.name),
                process,
                ..own.clone()
            }
        };
        (0..workers).map(of_worker).collect()
    }

    /// The values of all processes, by rank.
    fn gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, ProcessError> {
        match &self.0 {
            None => Ok(vec![own]),
            Some(comm) => gather(comm, &own, Wait::WhileAllLive),
        }
    }

    /// Checks that all processes have the same terms.
    pub(crate) fn check_same(&self, ours: Terms) -> Result<(), ProcessError> {
        let Some(comm) = &self.0 else { return Ok(()) };
        for (rank, theirs) in self.gather(ours.clone())?.into_iter().enumerate() {
            let mut both = ours.iter().zip(theirs);
            if let Some((ours, theirs)) = both.find(|(ours, theirs)| *ours != theirs) {
                return Err(ProcessError::Differs {
                    what: ours.0.clone(),
                    rank,
                    host: comm.host(rank).unwrap_or_default(),
                    theirs: theirs.1,
                    ours: ours.1.clone(),
                });
            }
        }
        Ok(())
    }

    /// What this process did, unless it failed in another one.
    pub(crate) fn agree<T>(&self, own: Result<T, CaseError>) -> Result<T, CaseError> {
        let Some(comm) = &self.0 else { return own };
        let reason = own.as_ref().err().map(ToString::to_string);
        let reasons = self.gather(reason)?;
        let own = own?;
        let mut failed = (reasons.into_iter().enumerate())
            .filter_map(|(rank, reason)| Some(ProcessError::failed(comm, rank, reason?)));
        failed.next().map_or(Ok(own), |error| Err(error.into()))
    }

    /// What all processes found in a case, with the place of the largest difference, or why there is nothing
    /// to compare.
    pub(crate) fn join(
        &self,
        own: Result<Comparison, Failure>,
    ) -> Result<Result<Difference, String>, ProcessError> {
        let mut found = Vec::new();
        let mut failures = Vec::new();
        for (rank, own) in self.gather(own)?.into_iter().enumerate() {
            match own {
                Ok(own) => found.push(own),
                Err(failure) => failures.push((rank, failure)),
            }
        }
        // Those that failed because of it name it, too.
        failures.sort_by_key(|(_, failure)| failure.is_of_other);
        let named = |rank| {
            let host = self.0.as_ref()?.host(rank).unwrap_or_default();
            Some(format!("rank {rank} on {host}"))
        };
        Ok(match failures.into_iter().next() {
            None => Ok(Comparison::join(found, named)),
            Some((rank, failure)) => Err(match &self.0 {
                Some(comm) if !failure.is_of_other => {
                    ProcessError::failed(comm, rank, failure.reason).to_string()
                }
                _ => failure.reason,
            }),
        })
    }
}
