//! Finds devices that have stopped working.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use burn::tensor::Tensor;

use super::device::NamedDevice;
use crate::engine::panic::caught;

/// The devices that do not add a few numbers within `limit`, each once: one that was lost fails, and one that hangs
/// does not answer. The CPU always does. A thread that waits for a device that hangs stays until the program ends.
///
/// ```
/// use std::time::Duration;
/// use stovepipe_pipeline::{NamedDevice, device::lost_devices};
///
/// let cpu: NamedDevice = "cpu".parse()?;
/// assert!(lost_devices(&[cpu], Duration::from_secs(10)).is_empty());
/// # Ok::<(), stovepipe_pipeline::device::DeviceError>(())
/// ```
#[must_use]
pub fn lost_devices(devices: &[NamedDevice], limit: Duration) -> Vec<NamedDevice> {
    let gpus = devices.iter().filter(|device| !device.is_cpu());
    lost(gpus, limit, adds)
}

fn adds(device: &NamedDevice) -> bool {
    let sum = caught(|| {
        Tensor::<1>::ones([8], &device.device)
            .sum()
            .into_scalar::<f32>()
    });
    sum == Ok(8.0)
}

/// Those of `devices` of which `works` does not return true in time.
fn lost<'a>(
    devices: impl Iterator<Item = &'a NamedDevice>,
    limit: Duration,
    works: impl Fn(&NamedDevice) -> bool + Clone + Send + 'static,
) -> Vec<NamedDevice> {
    let mut asked: Vec<NamedDevice> = Vec::new();
    for device in devices {
        if !asked.contains(device) {
            asked.push(device.clone());
        }
    }
    let end = Instant::now() + limit;
    let (works_here, answers) = mpsc::channel();
    for (index, device) in asked.iter().cloned().enumerate() {
        let (works, works_here) = (works.clone(), works_here.clone());
        let ask = move || caught(|| works(&device)) == Ok(true) && works_here.send(index).is_ok();
        // A device that cannot be asked counts as lost.
        let _ = thread::Builder::new().spawn(ask);
    }
    drop(works_here);
    let mut lost: Vec<_> = asked.into_iter().map(Some).collect();
    // Ends early when all have answered, or have failed.
    while let Ok(index) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        lost[index] = None;
    }
    lost.into_iter().flatten().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn devices_that_fail_panic_or_hang_are_lost() {
        let named = |name: &str| NamedDevice {
            name: name.to_owned(),
            ..Device::flex().into()
        };
        let devices = ["good", "fails", "panics", "hangs", "good", "slow"].map(named);
        let works = |device: &NamedDevice| match device.name.as_str() {
            "fails" => false,
            "panics" => panic!("the device is lost"),
            "hangs" => loop {
                thread::park();
            },
            "slow" => {
                thread::sleep(Duration::from_millis(20));
                true
            }
            _ => true,
        };
        let names = |lost: Vec<NamedDevice>| -> Vec<_> {
            lost.into_iter().map(|device| device.name).collect()
        };
        let found = lost(devices.iter(), Duration::from_secs(3), works);
        assert_eq!(names(found), ["fails", "panics", "hangs"]);
        // Nobody hangs: this does not wait for the limit.
        let found = lost(devices[..3].iter(), Duration::from_secs(3600), works);
        assert_eq!(names(found), ["fails", "panics"]);
    }
}
