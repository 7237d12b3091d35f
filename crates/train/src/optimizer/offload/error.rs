//! Why what lies off its device is lost.

use std::io;

use thiserror::Error;

/// Why an optimizer's state or a gradient that lies off its device is lost.
#[derive(Debug, Error)]
pub enum OffloadError {
    /// The storage failed.
    #[error("what lies off the device could not be {what}: {source}")]
    Storage {
        /// Opened, read or written.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The storage has other bytes than those that were written.
    #[error(
        "what lies off the device has changed since it was written: resume from the last \
         checkpoint, and check the disk"
    )]
    Changed,
    /// A test of averages did not give the weights back.
    #[error("weights and their averages have changed places: resume from the last checkpoint")]
    Swapped,
    /// Parameters are not changed in the order in which they are visited.
    #[error(
        "the model maps its parameters in another order than it visits them: its states must be on the device"
    )]
    Order,
    /// A parameter has a gradient on the device and another one off it.
    #[error(
        "a parameter has gradients of two steps: give all of a step to the optimizer before the next one"
    )]
    Twice,
    /// A device failed.
    #[error("states or gradients could not be moved between a device and the host: {0}")]
    Device(String),
}
