//! The settings of a run, as flags and configuration files write them.
//!
//! Each setting is one field: its doc comment is the flag's help, its name the flag and the key in
//! a configuration file, the flag's default the default.

mod all_reduce;
mod balance;
mod check;
mod freeze;
mod limits;
mod memory_check;
mod offload;
mod pipeline;
mod rate;
mod recompute;
mod schedule;
mod training;
mod value;

use clap::{Args, Command};

pub use all_reduce::AllReduceSetting;
pub use balance::BalanceSetting;
pub use freeze::FreezeSetting;
pub use limits::{cores, free_memory};
pub use memory_check::{AvailableMemory, DeviceMemory};
pub(crate) use offload::HOST;
pub use offload::OffloadSetting;
pub use pipeline::{MOST_MICRO_BATCHES, PipelineSettings};
pub use rate::RateSetting;
pub use recompute::RecomputeSetting;
pub use schedule::ScheduleSetting;
pub use training::{
    ChecksumSetting, DecaySetting, DecayedSetting, OptimizerSetting, SaveErrorSetting,
    TrainSettings,
};
pub use value::ValueError;

/// The flags of settings. A flag that is not given changes nothing, so it has no default here.
///
/// ```
/// use stovepipe_train::{TrainSettings, settings::flags_of};
///
/// let flags = flags_of::<TrainSettings>();
/// assert!(flags.get_arguments().any(|flag| flag.get_long() == Some("batch-size")));
/// ```
#[must_use]
pub fn flags_of<T: Args>() -> Command {
    let flags = T::augment_args(Command::new(""));
    let flags = flags.mut_args(|arg| arg.default_value(None::<&str>).required(false));
    flags.mut_args(|arg| arg.allow_negative_numbers(true))
}

/// Settings with the defaults that their flags declare.
///
/// ```
/// use stovepipe_train::{TrainSettings, settings::defaults};
///
/// assert_eq!(defaults::<TrainSettings>(), TrainSettings::default());
/// ```
#[must_use]
pub fn defaults<T: Args>() -> T {
    let command = T::augment_args(Command::new("").no_binary_name(true));
    T::from_arg_matches(&command.get_matches_from([""; 0])).unwrap_or_else(|error| error.exit())
}
