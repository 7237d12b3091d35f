//! What it takes to hand a value from one device to another.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use crossbeam_channel::{RecvTimeoutError, unbounded};
use stovepipe_schedule::Link;

use crate::{
    api::error::BuildError,
    engine::{guard, worker},
    measure::probe::{SILENCE, touch},
};

/// Numbers of a small message and of a large one.
const SMALL: usize = 256;
const LARGE: usize = 4 << 20;
const RUNS: usize = 9;
/// Nothing in this world is faster; where nothing is copied, no limit can be measured.
const MOST: f64 = 1e13;

/// What lies between the workers of two devices, one way: the hand-over from thread to thread, and the copy. Stages on one device hand over without a copy.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_pipeline::device::measure_link;
///
/// let link = measure_link(&Device::flex(), &Device::flex())?;
/// assert!(link.latency >= 0.0 && link.latency < 1.0);
/// assert!(link.bandwidth > 1e6);
/// # Ok::<(), stovepipe_pipeline::BuildError>(())
/// ```
///
/// # Errors
///
/// If a device cannot be used or does not answer, or a thread cannot be started.
pub fn measure_link(from: &Device, to: &Device) -> Result<Link, BuildError> {
    let small = transfer(from, to, SMALL)?;
    let large = transfer(from, to, LARGE)?;
    let bytes = (size_of::<f32>() * (LARGE - SMALL)) as f64;
    // Both are noisy: not more than half of the large message's time is taken to be latency.
    let copying = (large - small).max(large / 2.0);
    Ok(Link {
        latency: small,
        bandwidth: (bytes / copying).min(MOST),
    })
}

/// The median of the seconds from sending so many numbers on one worker to having them on the other.
fn transfer(from: &Device, to: &Device, numbers: usize) -> Result<f64, BuildError> {
    let worker =
        worker::spawn("link", 1).map_err(|source| BuildError::Worker { worker: 0, source })?;
    let (values, inbox) = unbounded::<Tensor<1>>();
    let (outbox, arrivals) = unbounded();
    let device = to.clone().inner();
    let is_taken_home = from != to && device == Device::flex();
    worker.run(move || {
        for value in inbox {
            let arrived = guard::guarded("device", || {
                let value = value.to_device(&device);
                if is_taken_home {
                    touch(&value.into_data());
                }
                (device.sync().map(|()| Instant::now())).map_err(|error| error.to_string())
            });
            let arrived = arrived
                .map_err(|error| error.to_string())
                .and_then(|inner| inner);
            if outbox.send(arrived).is_err() {
                return;
            }
        }
    });
    let refused = |cause: String| BuildError::Link { cause };
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let value = guard::guarded("device", || {
            let value = Tensor::<1>::zeros([numbers], &from.clone().inner()) + 1.0;
            from.sync()
                .map(|()| value)
                .map_err(|error| error.to_string())
        });
        let value = value
            .map_err(|error| refused(error.to_string()))?
            .map_err(refused)?;
        let began = Instant::now();
        if values.send(value).is_err() {
            return Err(BuildError::Unmeasured);
        }
        let arrived = arrivals.recv_timeout(SILENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                worker.settle(Some(Duration::ZERO)); // which leaves it behind
                refused(format!("no answer for {} s", SILENCE.as_secs()))
            }
            RecvTimeoutError::Disconnected => BuildError::Unmeasured,
        });
        let arrived = arrived?.map_err(refused)?;
        times.push(arrived.duration_since(began).as_secs_f64());
    }
    drop(values);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
