#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: stovepipe_fuzz::panics::may_be_caught(), |bytes: &[u8]| stovepipe_fuzz::train::weights(bytes));
