//! What is compared. Each side takes its turn in processes of its own.

use std::{
    env, fs,
    process::{Child, Command, Stdio},
};

use clap::ValueEnum;
use serde::Serialize;
use stovepipe_collective::AllReduce;

use crate::{Flags, failure::Failure, turn};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../peers/all_reduce.py");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Our ring, ranks in threads of one process
    Threads,
    /// Our ring over MPI
    Ring,
    /// Our group with MPI's sums, which `MPI_Iallreduce` computes
    ByMpi,
    /// `MPI_Allreduce`
    Mpi,
    /// torch.distributed over gloo
    Gloo,
}

impl Side {
    /// Those that this program was built for.
    pub fn all(has_python: bool) -> impl Iterator<Item = Self> {
        let has_mpi = cfg!(feature = "mpi");
        Self::value_variants()
            .iter()
            .copied()
            .filter(move |side| match side {
                Self::Threads => true,
                Self::Ring | Self::ByMpi | Self::Mpi => has_mpi,
                Self::Gloo => has_python,
            })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Ring => "ring over MPI",
            Self::ByMpi => "group by MPI",
            Self::Mpi => "MPI_Allreduce",
            Self::Gloo => "gloo",
        }
    }

    /// The seconds of an all-reduce, by size.
    pub fn run(self, flags: &Flags, ranks: usize) -> Result<Vec<f64>, Failure> {
        let mut command = match self {
            Self::Gloo => return gloo(flags, ranks),
            Self::Threads => Command::new(env::current_exe()?),
            Self::Ring | Self::ByMpi | Self::Mpi => {
                let mut command = stovepipe_comm_mpi::mpirun(ranks)?;
                // As root, in a container.
                for allow in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
                    command.env(allow, "1");
                }
                command.arg(env::current_exe()?);
                command
            }
        };
        let name = self
            .to_possible_value()
            .map(|value| value.get_name().to_owned());
        command.args([
            "--side",
            &name.unwrap_or_default(),
            "--ranks",
            &ranks.to_string(),
        ]);
        if flags.quick {
            command.arg("--quick");
        }
        seconds(self, command.stdout(Stdio::piped()).spawn()?)
    }

    /// Prints the seconds of an all-reduce of each size, as one of the ranks or as all of them.
    pub fn take_turn(self, sizes: &[usize], ranks: usize) -> Result<(), Failure> {
        match self {
            Self::Threads => turn::threads(sizes, ranks),
            Self::Ring => turn::in_job(sizes, AllReduce::Ring),
            Self::ByMpi => turn::in_job(sizes, AllReduce::Mpi),
            Self::Mpi => turn::mpi(sizes),
            Self::Gloo => Err("gloo takes its turn in Python".into()),
        }
    }
}

fn gloo(flags: &Flags, ranks: usize) -> Result<Vec<f64>, Failure> {
    // Where ranks find each other; it must not be there yet.
    let store = env::temp_dir().join(format!("stovepipe-allreduce-{}", std::process::id()));
    let _ = fs::remove_file(&store);
    let python = flags.python.as_deref().unwrap_or("python3");
    let start = |rank: usize| {
        let mut command = Command::new(python);
        command.args(["-B", SCRIPT, "--store"]).arg(&store);
        command.args([
            "--rank",
            &rank.to_string(),
            "--ranks",
            &ranks.to_string(),
            "--sizes",
        ]);
        command.args(flags.sizes().iter().map(usize::to_string));
        command.stdout(Stdio::piped()).spawn()
    };
    let children: Result<Vec<_>, _> = (0..ranks).map(start).collect();
    let found = children?
        .into_iter()
        .map(|child| seconds(Side::Gloo, child));
    let found: Result<Vec<_>, _> = found.collect();
    let _ = fs::remove_file(&store);
    Ok(found?.concat()) // only the first rank says any
}

fn seconds(side: Side, child: Child) -> Result<Vec<f64>, Failure> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!(
            "{} failed ({}); its error is above",
            side.name(),
            output.status
        )
        .into());
    }
    let text = String::from_utf8(output.stdout)?;
    let seconds: Result<_, _> = text.split_whitespace().map(str::parse).collect();
    Ok(seconds?)
}
