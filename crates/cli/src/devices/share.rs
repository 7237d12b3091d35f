//! What a process is offered of its machine, if several processes share it.

use std::env;

use stovepipe::{
    pipeline::NamedDevice,
    train::{Processes, TrainError, settings::cores},
};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

use crate::error::CliError;

/// Where launchers say which GPUs a process may use.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The devices of this machine, or this process's share of them. The CPU is one device with all threads
/// of the share, since a worker on `cpu` has one.
pub fn offered(processes: &Processes) -> Result<Vec<NamedDevice>, CliError> {
    let visible = env::var(VISIBLE).unwrap_or_default();
    let all = processes.gather(visible)?;
    let rank = processes.rank();
    let near = (0..all.len()).filter(|other| processes.host(*other) == processes.host(rank));
    let near: Vec<_> = near.collect();
    let place = near.iter().position(|other| *other == rank).unwrap_or(0);
    let has_own = near.iter().any(|other| all[*other] != all[rank]);
    // A launcher may have given each its cores.
    let is_bound = cores() * near.len() <= cpus();
    let threads = if is_bound {
        cores()
    } else {
        (cores() / near.len()).max(1)
    };
    let mut own = share(NamedDevice::offered(), (place, near.len()), has_own);
    for device in own
        .iter_mut()
        .filter(|device| device.is_cpu() && threads > 1)
    {
        *device = (format!("cpu:threads={threads}").parse()).map_err(TrainError::from)?;
    }
    Ok(own)
}

/// The CPUs of this machine, also those that this process may not use.
fn cpus() -> usize {
    let cpu = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    System::new_with_specifics(cpu).cpus().len()
}

/// GPUs in turn, unless the launcher has shared them out.
fn share(
    all: Vec<NamedDevice>,
    (place, processes): (usize, usize),
    has_own: bool,
) -> Vec<NamedDevice> {
    let (mut own, gpus): (Vec<_>, Vec<_>) = all.into_iter().partition(NamedDevice::is_cpu);
    let gpus = gpus.into_iter().enumerate();
    let in_turn = gpus.filter(|(index, _)| has_own || index % processes == place);
    own.extend(in_turn.map(|(_, gpu)| gpu));
    own
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn processes_take_gpus_in_turn_and_share_the_cpu() {
        // A name with a process stands for a GPU that this machine may lack.
        let all: Vec<NamedDevice> = ["cpu", "0/cuda:0", "0/cuda:1", "0/cuda:2"]
            .map(|name| name.parse().unwrap())
            .to_vec();
        let names = |place, processes, has_own| -> String {
            let own = share(all.clone(), (place, processes), has_own);
            let names = own.iter().map(|device| device.name.replace("0/", ""));
            names.collect::<Vec<_>>().join(" ")
        };
        for (place, processes, has_own, expected) in [
            (0, 1, false, "cpu cuda:0 cuda:1 cuda:2"),
            (0, 2, false, "cpu cuda:0 cuda:2"),
            (1, 2, false, "cpu cuda:1"),
            (3, 4, false, "cpu"),
            (1, 2, true, "cpu cuda:0 cuda:1 cuda:2"),
        ] {
            assert_eq!(names(place, processes, has_own), expected);
        }
    }
}
