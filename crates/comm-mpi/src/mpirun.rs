use std::{env, io, process::Command};

/// The start of a line that starts a job of `processes` on this machine: add a program and its
/// arguments.
///
/// ```no_run
/// let mut job = stovepipe_comm_mpi::mpirun(2)?;
/// assert!(job.arg("target/release/two-processes").status()?.success());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// If there is no `mpirun`.
pub fn mpirun(processes: usize) -> io::Result<Command> {
    let mut line = Command::new("mpirun");
    let version = Command::new("mpirun").arg("--version").output()?.stdout;
    line.args(["-n", &processes.to_string()]);
    if String::from_utf8_lossy(&version).contains("Open MPI") {
        // Open MPI counts cores, not their threads, and gives each process one core: it has more threads.
        line.args(["--oversubscribe", "--bind-to", "none"]);
        line.args(["--mca", "mpi_yield_when_idle", "1"]);
        if !is_found("ssh") {
            // All processes are here; Open MPI 4 asks for a remote shell all the same.
            line.args(["--mca", "plm_rsh_agent", "sh"]);
        }
    }
    Ok(line)
}

fn is_found(program: &str) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
