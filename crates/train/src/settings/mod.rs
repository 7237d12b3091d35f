//! The settings of a run, as flags and configuration files write them.
//!
//! Each setting is one field: its doc comment is the flag's help, its name the flag and the key in
//! a configuration file, its value in `Default` the default.

mod balance;
mod check;
mod freeze;
mod memory_check;
mod pipeline;
mod schedule;
mod training;
mod value;

pub use balance::BalanceSetting;
pub use freeze::FreezeSetting;
pub use memory_check::{DeviceMemory, free_memory};
pub use pipeline::PipelineSettings;
pub use schedule::ScheduleSetting;
pub use training::{DecaySetting, OptimizerSetting, SaveErrorSetting, TrainSettings};
pub use value::ValueError;
