//! The machine and the time of a measurement.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct HostInfo {
    pub device: String,
    /// The processor's name.
    pub cpu: String,
    pub threads: usize,
    /// Operating system and architecture.
    pub system: String,
    /// Runnable threads over the last minute when the program began. On a busy machine the results
    /// say little.
    pub load: Option<f64>,
}

impl HostInfo {
    pub fn this() -> Self {
        Self {
            device: "cpu (Burn's flex backend)".to_owned(),
            cpu: cpu_name().unwrap_or_else(|| "unknown".to_owned()),
            threads: std::thread::available_parallelism().map_or(0, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            load: load(),
        }
    }
}

fn cpu_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The time now, in UTC: `2026-01-31 09:05`.
pub fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let minutes = since.map_or(0, |since| since.as_secs() / 60);
    let [year, month, day] = civil(minutes / (24 * 60));
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Year, month and day of a number of days since 1970-01-01. Years begin in March here, so that
/// the leap day is the last; five months from March on always have 153 days.
fn civil(days: u64) -> [u64; 3] {
    let days = days + 719_468; // since 0000-03-01
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    [400 * era + year + u64::from(month <= 2), month, day]
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), [1970, 1, 1]);
        assert_eq!(civil(11_016), [2000, 2, 29]);
        assert_eq!(civil(11_017), [2000, 3, 1]);
        assert_eq!(civil(20_453), [2025, 12, 31]);
    }
}
