//! Latency and bandwidth of a communicator beside MPI itself, as ratios:
//!
//! ```sh
//! cargo run --release -p stovepipe-comm-mpi --features mpi --example beside-mpi
//! ```
//!
//! Both sides send a message to and fro between two processes. They take turns in rounds, each under an
//! `mpirun` of its own, since a process can initialize MPI once. Plain MPI receives as it must if it does
//! not know lengths: it probes, allocates and receives. "own buffer" is MPI with a buffer that it has.

use std::{
    env,
    error::Error,
    sync::mpsc::channel,
    time::{Duration, Instant},
};

use mpi::traits::{Communicator, Destination, Source};
use stovepipe_comm_mpi::{init, launcher};

const SIZES: [usize; 4] = [8, 4 << 10, 256 << 10, 16 << 20];
const SIDES: [&str; 3] = ["mpi", "mpi-buffer", "comm"];
const ROUNDS: usize = 5;
/// How long each size is measured in a round.
const TIME: Duration = Duration::from_millis(700);

fn main() -> Result<(), Box<dyn Error>> {
    match (launcher(), env::args().nth(1).as_deref()) {
        (Some(_), Some("comm")) => comm()?,
        (Some(_), Some(side)) => mpi(side == "mpi-buffer"),
        _ => compare()?,
    }
    Ok(())
}

/// One way of a message, in µs: the median of the rounds, and the ratios' medians.
fn compare() -> Result<(), Box<dyn Error>> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push([run(SIDES[0])?, run(SIDES[1])?, run(SIDES[2])?]);
    }
    let median = |value: &dyn Fn(&[Vec<f64>; 3]) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[ROUNDS / 2]
    };
    println!("   bytes    MPI µs  MPI, own buffer µs   comm µs  comm GB/s  comm / MPI");
    for (index, size) in SIZES.iter().enumerate() {
        let [plain, buffer, comm] = [0, 1, 2].map(|side| median(&|round| round[side][index]));
        let ratio = median(&|round| round[2][index] / round[0][index]);
        let speed = *size as f64 / comm / 1e3;
        println!("{size:8} {plain:9.2} {buffer:19.2} {comm:9.2} {speed:10.2} {ratio:11.2}");
    }
    Ok(())
}

fn run(side: &str) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut command = stovepipe_comm_mpi::mpirun(2)?;
    command.arg(env::current_exe()?).arg(side);
    for allow in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(allow, "1");
    }
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let times: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    times.map_err(|_| String::from_utf8_lossy(&output.stderr).into())
}

/// Rank 0 calls `to_and_fro` for a while; the time of one way. The last message says so by its
/// first byte.
fn measure(size: usize, mut to_and_fro: impl FnMut(Vec<u8>) -> Vec<u8>) {
    let (mut message, mut trips) = (vec![0; size], 0);
    let mut began = Instant::now();
    while began.elapsed() < TIME {
        message = to_and_fro(message);
        trips += 1;
        if trips == 20 {
            began = Instant::now(); // warm
        }
    }
    let time = began.elapsed().as_secs_f64() / f64::from(trips - 20) / 2.0;
    message[0] = 1;
    to_and_fro(message);
    println!("{}", time * 1e6);
}

fn mpi(has_buffer: bool) {
    let universe = mpi::initialize();
    let world = universe.as_ref().map(mpi::environment::Universe::world);
    let Some(world) = world else { return };
    let other = world.process_at_rank(1 - world.rank());
    let receive = |mut buffer: Vec<u8>| {
        if has_buffer {
            other.receive_into(&mut buffer[..]);
            return buffer;
        }
        drop(buffer);
        other.receive_vec().0
    };
    for size in SIZES {
        if world.rank() == 0 {
            measure(size, |message| {
                other.send(&message[..]);
                receive(message)
            });
            continue;
        }
        let mut message = vec![0; size];
        while message[0] == 0 {
            message = receive(message);
            other.send(&message[..]);
        }
    }
}

fn comm() -> Result<(), Box<dyn Error>> {
    let comm = init(None)?;
    let (sender, messages) = channel();
    comm.set_sink(0, move |message| {
        drop(message.map(|message| sender.send(message)))
    });
    comm.all_gather(Vec::new())?;
    for size in SIZES {
        if comm.rank() == 0 {
            measure(size, |message| {
                let sent = comm.send(1, 0, 0, vec![message]);
                let message = messages.recv().map(|mut message| message.parts.remove(0));
                sent.map_or_else(|_| vec![1], |()| message.unwrap_or_default())
            });
            continue;
        }
        let mut is_last = false;
        while !is_last {
            let message = messages.recv()?;
            is_last = message.parts[0][0] == 1;
            comm.send(0, 0, 0, message.parts)?;
        }
    }
    Ok(())
}
