//! Measures the link between two devices.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use crossbeam_channel::{RecvTimeoutError, unbounded};
use stovepipe_schedule::Link;

use crate::{
    api::error::{BoxedError, BuildError},
    engine::{panic::caught, worker},
    measure::probe::{ANSWER_TIMEOUT, median, touch},
};

/// The number of floats in a small and in a large message.
const SMALL: usize = 256;
const LARGE: usize = 4 << 20;
const RUNS: usize = 9;
/// The largest bandwidth: where nothing is copied, none can be measured.
const MAX_BANDWIDTH: f64 = 1e13;

/// Measures how long a value takes from a worker on one device to a worker on another. Stages on one
/// device share values without a copy.
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
    // Both times are noisy: at most half of the large one counts as latency.
    let copying = (large - small).max(large / 2.0);
    Ok(Link {
        latency: small,
        bandwidth: (bytes / copying).min(MAX_BANDWIDTH),
    })
}

/// The median of the seconds from sending some floats on one worker to having them on the other.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn transfer(from: &Device, to: &Device, floats: usize) -> Result<f64, BuildError> {
    let worker = worker::spawn_alone("link", 1)?;
    let (values, inbox) = unbounded::<Tensor<1>>();
    let (outbox, arrivals) = unbounded();
    let device = to.clone().inner();
    let is_copied_to_host = from != to && device == Device::flex();
    worker.run(move || {
        for value in inbox {
            let arrived = in_device(|| {
                let value = value.to_device(&device);
                if is_copied_to_host {
                    touch(&value.into_data());
                }
                device.sync()?;
                Ok(Instant::now())
            });
            if outbox.send(arrived).is_err() {
                return;
            }
        }
    });
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let value = in_device(|| {
            let value = Tensor::<1>::zeros([floats], &from.clone().inner()) + 1.0;
            from.sync()?;
            Ok(value)
        })?;
        let began = Instant::now();
        if values.send(value).is_err() {
            return Err(BuildError::Unmeasured);
        }
        let arrived = arrivals.recv_timeout(ANSWER_TIMEOUT);
        let arrived = arrived.map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                worker.settle(Some(Duration::ZERO)); // gives it up
                BuildError::Link(format!("no answer for {} s", ANSWER_TIMEOUT.as_secs()).into())
            }
            RecvTimeoutError::Disconnected => BuildError::Unmeasured,
        })??;
        times.push(arrived.duration_since(began));
    }
    drop(values);
    Ok(median(times))
}

fn in_device<R>(work: impl FnOnce() -> Result<R, BoxedError>) -> Result<R, BuildError> {
    let result = caught(work).map_err(BoxedError::from).flatten();
    result.map_err(BuildError::Link)
}
