/// A number of bytes for people, with a binary unit.
///
/// ```
/// use stovepipe_schedule::format_bytes;
///
/// assert_eq!(format_bytes(1023), "1023 B");
/// assert_eq!(format_bytes(1536), "1.5 KiB");
/// assert_eq!(format_bytes(3 << 40), "3.0 TiB");
/// ```
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
