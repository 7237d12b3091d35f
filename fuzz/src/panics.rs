//! Panics of libraries that Stovepipe catches.

use std::panic;

/// For targets whose readers catch panics, and report them as errors. libFuzzer's hook would end the process before they
/// could. A panic that nobody catches is a crash nevertheless.
pub fn may_be_caught() {
    panic::set_hook(Box::new(|panicked| eprintln!("{panicked}")));
}
