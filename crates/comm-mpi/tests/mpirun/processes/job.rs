//! A job: `mpirun`, and this program as each of its ranks.

use std::{
    env,
    io::Read,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Which program of `ranks` a rank runs.
pub const PROGRAM: &str = "STOVEPIPE_COMM_PROGRAM";
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Job {
    child: Child,
    output: tempfile::NamedTempFile,
    size: usize,
}

pub fn has_mpirun() -> bool {
    let mut version = Command::new("mpirun");
    let version = version.arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

impl Job {
    /// Starts a job; `None` if there is no `mpirun`.
    pub fn start(size: usize, program: &str) -> Option<Self> {
        let mut command = stovepipe_comm_mpi::mpirun(size).ok()?;
        // CI is root.
        for allow in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(allow, "1");
        }
        command.arg(env::current_exe().unwrap());
        Some(Self::spawn(command, size, program))
    }

    /// Starts one rank without `mpirun`.
    pub fn alone(program: &str) -> Option<Self> {
        let command = Command::new(env::current_exe().unwrap());
        has_mpirun().then(|| Self::spawn(command, 1, program))
    }

    fn spawn(mut command: Command, size: usize, program: &str) -> Self {
        let output = tempfile::NamedTempFile::new().unwrap();
        // One place to write at, another to read from.
        let writer = output.reopen().unwrap();
        command.args(["--exact", "processes::ranks::rank", "--nocapture"]);
        command.env(PROGRAM, program).stdin(Stdio::null());
        let child = command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = child.spawn().unwrap();
        Self {
            child,
            output,
            size,
        }
    }

    /// The processes of the ranks, by rank, once all have said theirs.
    pub fn processes(&self) -> Vec<u32> {
        let began = Instant::now();
        loop {
            let text = self.text();
            let said = text
                .lines()
                .filter_map(|line| line.strip_prefix("process "));
            let mut said: Vec<Vec<u32>> = said
                .map(|line| {
                    line.split(' ')
                        .map_while(|word| word.parse().ok())
                        .collect()
                })
                .filter(|words: &Vec<u32>| words.len() == 2)
                .collect();
            if said.len() == self.size {
                said.sort_unstable();
                return said.into_iter().map(|words| words[1]).collect();
            }
            assert!(began.elapsed() < PATIENCE, "{text}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a rank says something.
    pub fn wait_for(&self, said: &str) {
        let began = Instant::now();
        while !self.text().contains(said) {
            assert!(began.elapsed() < PATIENCE, "{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn launcher(&self) -> u32 {
        self.child.id()
    }

    pub fn text(&self) -> String {
        let mut text = Vec::new();
        self.output
            .reopen()
            .unwrap()
            .read_to_end(&mut text)
            .unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits for the job to end.
    pub fn end(mut self) -> (ExitStatus, String) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.text());
            }
            if began.elapsed() > PATIENCE {
                signal("-TERM", self.launcher());
                let _ = self.child.wait();
                panic!("the job did not end:\n{}", self.text());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether a process runs. One that has ended and is not waited for does not.
pub fn lives(process: u32) -> bool {
    let stat = Path::new("/proc").join(process.to_string()).join("stat");
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

pub fn signal(signal: &str, process: u32) {
    let kill = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(kill.unwrap().success());
}
