//! Jobs that succeed, and jobs with a faulty rank: they end, with an exit status other than 0, and no
//! process is left.

use std::{
    env, fs, thread,
    time::{Duration, Instant, SystemTime},
};

use super::job::{Job, lives, signal};

const SIZES: [usize; 2] = [2, 4];
/// How many ranks are killed for each size of job; more for a longer test.
const KILLS: &str = "STOVEPIPE_COMM_KILLS";

fn succeeds(job: Option<Job>) {
    if let Some((status, text)) = job.map(Job::end) {
        assert!(status.success(), "{status}: {text}");
    }
}

/// The job ends, says all of this in one line, and leaves no process.
fn fails(size: usize, program: &str, act: impl FnOnce(&Job), expected: &[&str]) {
    let Some(job) = Job::start(size, program) else {
        return;
    };
    let processes = job.processes();
    act(&job);
    let (status, text) = job.end();
    assert!(!status.success(), "{program}: {text}");
    let says = |line: &str| expected.iter().all(|part| line.contains(part));
    assert!(
        text.lines().any(says),
        "{program}: no line with {expected:?} in\n{text}"
    );
    // `mpirun` has sent its signals when it ends; the kernel may need a moment.
    let began = Instant::now();
    while processes.iter().any(|process| lives(*process)) {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{program}: a process is left: {text}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// `rank 1 on ` and this host.
fn rank(rank: usize) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    format!("rank {rank} on {}", host.trim())
}

#[test]
fn ranks_under_mpirun_conform() {
    for size in SIZES {
        succeeds(Job::start(size, "conforms"));
    }
}

#[test]
fn a_rank_without_mpirun_conforms() {
    succeeds(Job::alone("conforms"));
}

#[test]
fn groups_under_mpirun_conform() {
    for size in [2, 3, 4] {
        succeeds(Job::start(size, "groups conform"));
    }
}

#[test]
fn groups_whose_sums_are_mpis_conform() {
    for size in [2, 3, 4] {
        succeeds(Job::start(size, "groups conform by MPI"));
    }
}

/// Ranks agree before MPI adds up, so it never adds up what does not fit, and nobody waits for it.
#[test]
fn a_group_whose_sums_are_mpis_names_what_is_wrong() {
    for size in [2, 3] {
        for (program, differs) in [
            ("reduces something else by MPI", "the length of tensor 1 is"),
            ("reduces another type by MPI", "the type is f"),
            (
                "reduces in the ring beside MPI",
                "the call is all_reduce (Sum)",
            ),
        ] {
            let says = format!("reduces something else: {differs}");
            fails(size, program, |_| {}, &[&says]);
        }
        let left = format!("{} has left the job", rank(1));
        fails(size, "leaves before MPI", |_| {}, &[&left]);
        let stop = |job: &Job| {
            job.wait_for("MPI adds up");
            signal("-STOP", job.processes()[1]);
        };
        fails(size, "reduces by MPI", stop, &["rank 0 failed: ", &rank(1)]);
    }
}

/// MPI cannot be told to stop: the job ends, and says why.
#[test]
fn a_run_that_is_cancelled_while_mpi_adds_up_ends_the_job() {
    let says =
        "the run was cancelled during MPI_Iallreduce, which cannot be cancelled: the job ends";
    let own = format!("rank 0 failed: {says}");
    fails(2, "is cancelled in MPI", |_| {}, &[&own]);
    let other = format!("{} aborted the job: {says}", rank(0));
    fails(
        2,
        "is cancelled in MPI",
        |_| {},
        &["rank 1 failed: ", &other],
    );
}

#[test]
fn a_group_whose_rank_fails_ends_the_job_and_says_why() {
    for size in SIZES {
        let left = format!("{} has left the job", rank(1));
        fails(size, "leaves between the halves", |_| {}, &[&left]);
        // It finds this out itself, or the rank after it does.
        let differs = "reduces something else: the length of tensor 0 is 104857";
        fails(size, "reduces something else", |_| {}, &[&rank(1), differs]);
        let stop = |job: &Job| signal("-STOP", job.processes()[1]);
        fails(size, "reduces", stop, &["rank 0 failed: ", &rank(1)]);
    }
}

#[test]
fn ranks_may_leave_one_after_the_other() {
    for size in SIZES {
        succeeds(Job::start(size, "leaves at the end"));
    }
}

#[test]
fn a_rank_that_is_killed_at_any_moment_ends_the_job() {
    let kills = env::var(KILLS).map_or(8, |kills| kills.parse().unwrap());
    for size in SIZES {
        for kill in 0..kills {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let wait = Duration::from_millis(u64::from(now.unwrap().subsec_micros() % 700));
            let kills = |job: &Job| {
                thread::sleep(wait);
                signal("-KILL", job.processes()[kill % size]);
            };
            let program = ["talks", "reduces", "reduces by MPI"][kill / size % 3];
            fails(size, program, kills, &[]);
        }
    }
}

#[test]
fn no_rank_outlives_mpirun() {
    for signalled in ["-INT", "-TERM", "-KILL"] {
        fails(2, "talks", |job| signal(signalled, job.launcher()), &[]);
    }
}

#[test]
fn a_rank_that_is_stopped_is_named() {
    for size in SIZES {
        let stop = |job: &Job| signal("-STOP", job.processes()[1]);
        let missing = format!("{} did not answer within 5s", rank(1));
        fails(size, "gathers", stop, &[&missing]);
        // It takes nothing, and it is silent: either may be noticed first, and by any of the others.
        fails(size, "sends", stop, &["rank 0 failed: ", &rank(1)]);
        let stop_late = |job: &Job| {
            job.wait_for("rank 0 met all");
            stop(job);
        };
        fails(size, "waits for all that live", stop_late, &[&missing]);
    }
}

#[test]
fn a_rank_that_fails_ends_the_job_and_says_why() {
    let aborted = format!("rank 0 failed: {} aborted the job: ", rank(1));
    for size in SIZES {
        let said = |reason| format!("{aborted}{reason}");
        fails(size, "aborts", |_| {}, &[&said("the disk is full")]);
        fails(size, "panics", |_| {}, &[&said("a thread panicked")]);
        let left = format!("{} has left the job", rank(1));
        fails(size, "leaves", |_| {}, &[&left]);
        fails(size, "exits", |_| {}, &[]);
    }
}

#[test]
fn a_rank_that_does_not_end_is_not_waited_for() {
    let missing = format!("{} did not answer within 5s", rank(1));
    fails(2, "leaves and is waited for", |_| {}, &[&missing]);
    fails(4, "hangs after a failure", |_| {}, &[&missing]);
}
