//! Devices whose memory is spent.

/// What to do then.
const ADVICE: &str = "The device has no memory left for this stage: take more micro-batches, compute \
     again always, take more stages, or put fewer layers there";

/// What Burn, wgpu and CUDA say then. Burn hands their errors on as text.
const SAID: [&str; 6] = [
    "out of memory",
    "out-of-memory",
    "out of device memory",
    "out_of_memory",
    "not enough memory",
    "can't allocate",
];

/// Whether the text of an error says that a device has no memory left.
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
    SAID.iter().any(|said| error.contains(said))
}

/// What went wrong, with what to do if memory was short.
pub(crate) fn advised(cause: &str) -> String {
    match is_out_of_memory(cause) {
        true => format!("{cause}. {ADVICE}"),
        false => cause.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_is_known_by_what_it_says() {
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
