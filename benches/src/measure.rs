//! Turns taken in rounds.
//!
//! Other load on the machine comes and goes within minutes. So configurations are not measured one
//! after the other: each takes a short turn, round after round, and the load affects all of them.

use std::{
    fs,
    time::{Duration, Instant},
};

use rayon::ThreadPoolBuilder;

use crate::Failure;

pub type Turn<'a> = Box<dyn FnMut() -> Result<TurnCost, Failure> + 'a>;

#[derive(Clone, Copy, Debug)]
pub struct TurnCost {
    pub seconds: f64,
    /// Processor seconds of all threads, without waiting. NaN where the system does not report them.
    pub processor: f64,
}

#[derive(Clone, Debug, Default)]
pub struct TurnCosts {
    pub seconds: Seconds,
    pub processor: Seconds,
}

/// The seconds of each turn of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Seconds(pub Vec<f64>);

impl Seconds {
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Half the distance between the quartiles, as a share of the median.
    pub fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / 2.0 / self.median()
    }

    /// This divided by `other`, round by round: load that affects both in a round cancels.
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return f64::NAN;
        };
        let place = share * last as f64;
        let (below, rest) = (place.floor() as usize, place.fract());
        sorted[below] + rest * (sorted[last.min(below + 1)] - sorted[below])
    }
}

/// Lets all take turns for `rounds` rounds, after one that warms up. Every other round is in
/// reverse order, so that no configuration always follows the same one.
pub fn take_turns(turns: &mut [Turn<'_>], rounds: usize) -> Result<Vec<TurnCosts>, Failure> {
    for turn in turns.iter_mut() {
        turn()?;
    }
    let mut found = vec![TurnCosts::default(); turns.len()];
    for round in 0..rounds {
        for place in 0..turns.len() {
            let reverse = turns.len() - 1 - place;
            let index = if round % 2 == 0 { place } else { reverse };
            let TurnCost { seconds, processor } = turns[index]()?;
            found[index].seconds.0.push(seconds);
            found[index].processor.0.push(processor);
        }
    }
    Ok(found)
}

/// Repeats a step for at least `minimum`. Returns the mean time of one.
pub fn repeat(
    minimum: Duration,
    step: impl FnMut() -> Result<(), Failure>,
) -> Result<TurnCost, Failure> {
    let before = processor_seconds();
    let (steps, seconds) = count(minimum, step)?;
    Ok(TurnCost {
        seconds: seconds / steps,
        processor: (processor_seconds() - before) / steps,
    })
}

/// Repeats a step for at least `minimum`. Returns the number of steps, and the seconds of all.
pub fn count(
    minimum: Duration,
    mut step: impl FnMut() -> Result<(), Failure>,
) -> Result<(f64, f64), Failure> {
    let began = Instant::now();
    let mut steps = 0.0;
    while steps == 0.0 || began.elapsed() < minimum {
        step()?;
        steps += 1.0;
    }
    Ok((steps, began.elapsed().as_secs_f64()))
}

/// The processor seconds of this process's living threads so far. NaN where the system does not
/// report them.
pub fn processor_seconds() -> f64 {
    let nanoseconds = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let sum = |tasks: fs::ReadDir| -> f64 {
        let tasks = tasks.filter_map(Result::ok);
        tasks.filter_map(nanoseconds).sum()
    };
    fs::read_dir("/proc/self/task").map_or(f64::NAN, |tasks| sum(tasks) / 1e9)
}

/// A number of `/proc/self/status`; of memory, in KiB.
pub fn process_status(name: &str) -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut values = status.lines().filter_map(|line| line.split_once(':'));
    let value = values.find(|(own, _)| *own == name);
    let number = value.and_then(|(_, value)| value.split_whitespace().next());
    let number = number.ok_or_else(|| format!("the system does not say {name}"))?;
    Ok(number.parse()?)
}

/// The mean; 0 for none.
pub fn mean(seconds: &[f64]) -> f64 {
    match seconds.len() {
        0 => 0.0,
        count => seconds.iter().sum::<f64>() / count as f64,
    }
}

/// The seconds of some work, and its result.
pub fn time<R>(work: impl FnOnce() -> R) -> (f64, R) {
    let began = Instant::now();
    let result = work();
    (began.elapsed().as_secs_f64(), result)
}

/// Makes the calling thread a pool of one for the rest of its life: kernels that it runs find no
/// other thread to spread to. Fails if the thread is in a pool already.
pub fn compute_alone() -> Result<(), Failure> {
    let pool = ThreadPoolBuilder::new().num_threads(1);
    std::mem::forget(pool.use_current_thread().build()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        let seconds = Seconds(vec![4.0, 1.0, 2.0, 3.0, 5.0]);
        assert_eq!((seconds.median(), seconds.spread()), (3.0, 1.0 / 3.0));
        assert_eq!(Seconds(vec![1.0, 2.0]).median(), 1.5);
        assert!(Seconds::default().median().is_nan());
    }
}
