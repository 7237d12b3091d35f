//! The tags of messages.

/// The lower bits of a tag say which message of a call it is: the header is 0, pieces follow.
const MESSAGE_BITS: u32 = 24;

/// The tag of the header of a call.
pub(crate) fn header_tag(call: u64) -> u64 {
    call << MESSAGE_BITS
}

/// The call that a message is part of.
pub(crate) fn call_of(tag: u64) -> u64 {
    tag >> MESSAGE_BITS
}
