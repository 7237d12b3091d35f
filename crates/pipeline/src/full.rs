//! Devices whose memory is spent.

/// What to do then.
pub(crate) const ADVICE: &str = "The device has no memory left for this stage: take more micro-batches, compute \
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

/// Whether an error says that a device has no memory left.
pub(crate) fn is_full(error: &str) -> bool {
    let error = error.to_lowercase();
    SAID.iter().any(|said| error.contains(said))
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
            assert_eq!(is_full(error), expected, "{error}");
        }
    }
}
