//! A turn: the first rank prints the median seconds of a step after each pause.

use std::{
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use stovepipe_comm::{Agreement, Communicator, Terms, Wait, gather};

use crate::{PAUSES, failure::Failure};

/// The bytes of a stage's report, about.
const REPORT: usize = 1 << 10;

pub fn local(steps: usize) -> Result<(), Failure> {
    let ranks = stovepipe_comm::local(2, None)?.into_iter();
    let ranks: Vec<_> = ranks
        .map(|comm| thread::spawn(move || take(comm, steps).map_err(|error| error.to_string())))
        .collect();
    let mut ranks = ranks.into_iter();
    ranks.try_for_each(|rank| Ok(rank.join().map_err(|_| "a rank panicked")??))
}

#[cfg(feature = "mpi")]
pub fn mpi(steps: usize) -> Result<(), Failure> {
    take(stovepipe_comm_mpi::init(None)?, steps)
}

#[cfg(not(feature = "mpi"))]
pub fn mpi(_: usize) -> Result<(), Failure> {
    Err("ranks under mpirun need a build with `--features mpi`".into())
}

fn take(comm: Communicator, steps: usize) -> Result<(), Failure> {
    let agreement = Agreement::new((Arc::new(comm), 0), |_, _| Ok(()), |_, _| ());
    for pause in PAUSES {
        // The first steps warm up.
        let times = (0..steps + steps / 4).map(|step| agree(&agreement, step, pause));
        let times = times.collect::<Result<Vec<_>, Failure>>()?;
        let times = &times[steps / 4..];
        let all: Vec<Vec<[f64; 2]>> = gather(agreement.comm(), times, Wait::WhileAllLive)?;
        let latest = |step: usize, end: usize| {
            let times = all.iter().map(|times| times[step][end]);
            times.fold(f64::NEG_INFINITY, f64::max)
        };
        let seconds = (0..steps).map(|step| latest(step, 1) - latest(step, 0));
        let mut seconds: Vec<_> = seconds.collect();
        seconds.sort_by(f64::total_cmp);
        if agreement.comm().rank() == 0 {
            println!("{}", seconds[steps / 2]);
        }
    }
    Ok(())
}

/// When this rank began to agree on a step, and when it was done.
fn agree(agreement: &Agreement, step: usize, pause: Duration) -> Result<[f64; 2], Failure> {
    thread::sleep(pause);
    let began = now()?;
    agreement.meet(Ok::<_, Failure>(()), |()| (terms(step), ()))?;
    agreement.begin();
    let ended = agreement.end::<_, Failure>(Ok(vec![0_u8; REPORT]));
    ended.map_err(|_| "another rank failed")?;
    Ok([began, now()?])
}

/// Seconds of the clock that all processes of this machine share.
fn now() -> Result<f64, Failure> {
    Ok(SystemTime::UNIX_EPOCH.elapsed()?.as_secs_f64())
}

/// Like those of a training step.
fn terms(step: usize) -> Terms {
    let terms = [
        ("the call", "train_step".to_owned()),
        ("the step", step.to_string()),
        ("the finished share of the training", "0.5".to_owned()),
        ("the samples of each micro-batch", format!("{:?}", [16; 8])),
        ("the batch's weight", "128".to_owned()),
        ("whether outputs are kept", "false".to_owned()),
    ];
    terms.map(|(name, value)| (name.to_owned(), value)).into()
}
