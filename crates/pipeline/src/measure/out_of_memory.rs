//! Devices without free memory.

use std::fmt;

/// What to do.
const ADVICE: &str = "The device has no memory left for this stage: use more micro-batches, recompute \
     `always`, use more stages, or give this stage fewer layers";

/// Messages of Burn, wgpu and CUDA. Burn passes their errors on as text.
const MESSAGES: [&str; 6] = [
    "out of memory",
    "out-of-memory",
    "out of device memory",
    "out_of_memory",
    "not enough memory",
    "can't allocate",
];

/// Whether an error message says that a device has no memory left.
///
/// ```
/// use stovepipe_pipeline::device::is_out_of_memory;
///
/// assert!(is_out_of_memory("out of device memory allocating 4096 bytes"));
/// assert!(!is_out_of_memory("the device was lost"));
/// ```
#[must_use]
pub fn is_out_of_memory(error: &str) -> bool {
    let error = error.to_lowercase();
    MESSAGES.iter().any(|message| error.contains(message))
}

/// The error's message, with advice if memory ran out.
pub(crate) fn advised(error: &impl fmt::Display) -> String {
    let mut text = error.to_string();
    if is_out_of_memory(&text) {
        text = format!("{text}. {ADVICE}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_memory_is_known_by_its_message() {
        for (error, expected) in [
            ("out of device memory allocating 4096 bytes", true), // cubecl
            ("can't allocate buffer of size: 8589934592", true),
            ("An out-of-memory error happened during launch", true),
            ("wgpu error: Out of Memory", true),
            ("Not enough memory left.", true), // wgpu
            (
                "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
                true,
            ),
            ("the device was lost", false),
            ("shapes do not match: memory [4, 3]", false),
        ] {
            assert_eq!(is_out_of_memory(error), expected, "{error}");
        }
    }
}
