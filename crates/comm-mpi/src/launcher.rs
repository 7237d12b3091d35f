use std::{env, ffi::OsString};

/// Variables that launchers set for each process they start.
const VARIABLES: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMIX_RANK", "a launcher with PMIx, such as srun"),
    (
        "PMI_SIZE",
        "a launcher with PMI, such as MPICH's mpiexec or srun",
    ),
    (
        "PMI_RANK",
        "a launcher with PMI, such as MPICH's mpiexec or srun",
    ),
];

/// The processes of a job step of Slurm.
const TASKS: &str = "SLURM_STEP_NUM_TASKS";

const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", TASKS];

const RANKS: [&str; 4] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
];

/// What started this process as a rank of an MPI job; `None` if it was started by itself. Does not
/// initialize MPI.
///
/// ```
/// match stovepipe_comm_mpi::launcher() {
///     Some(launcher) => println!("started by {launcher}"),
///     None => println!("the only process"),
/// }
/// ```
#[must_use]
pub fn launcher() -> Option<&'static str> {
    launcher_in(|name| env::var_os(name))
}

/// How many processes the launcher has started, if it says so.
#[must_use]
pub fn launched() -> Option<usize> {
    let mut sizes = SIZES
        .iter()
        .filter_map(|name| env::var(name).ok()?.parse().ok());
    sizes.next()
}

/// The rank that the launcher has given this process, if it says so.
#[must_use]
pub fn launched_rank() -> Option<usize> {
    let mut ranks = RANKS
        .iter()
        .filter_map(|name| env::var(name).ok()?.parse().ok());
    ranks.next()
}

fn launcher_in(variable: impl Fn(&str) -> Option<OsString>) -> Option<&'static str> {
    let set = |(name, _): &&(&str, _)| variable(name).is_some();
    let known = VARIABLES.iter().find(set).map(|(_, launcher)| *launcher);
    // Without `--mpi`, srun says nothing else of the other processes.
    let tasks = variable(TASKS).and_then(|tasks| tasks.to_str()?.parse::<usize>().ok());
    known.or_else(|| (tasks? > 1).then_some("srun"))
}

#[cfg(test)]
mod tests {
    use super::{OsString, launcher_in};

    #[test]
    fn launchers_are_known_by_their_variables() {
        let with = |set: &'static str| launcher_in(move |name| (name == set).then(OsString::new));
        assert_eq!(with("OMPI_COMM_WORLD_SIZE"), Some("Open MPI's mpirun"));
        assert!(with("PMIX_RANK").is_some_and(|launcher| launcher.contains("srun")));
        // Set in the shell of a Slurm allocation, too.
        assert_eq!(with("SLURM_JOB_ID"), None);
        let tasks = |count: &'static str| {
            launcher_in(move |name| (name == "SLURM_STEP_NUM_TASKS").then(|| count.into()))
        };
        assert_eq!([tasks("1"), tasks("2")], [None, Some("srun")]);
    }
}
