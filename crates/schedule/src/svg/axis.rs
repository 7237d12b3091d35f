//! The time axis below the rows.

use std::time::Duration;

use ::svg::{Node, node::element::Group};

use crate::summary::unit;

use super::{line, text};

/// Height of the axis, below the last row.
pub(super) const HEIGHT: f64 = 38.0;
const MOST_TICKS: f64 = 10.0;

/// From the left end `x`, as wide as the length in time.
pub(super) fn draw(page: &mut Group, (left, y): (f64, f64), width: f64, length: Duration) {
    page.append(line("axis", (left, y), (left + width, y)));
    let (unit, per_second) = unit(length);
    let length = length.as_secs_f64() * per_second;
    if length == 0.0 {
        return;
    }
    let distance = TickDistance::for_length(length);
    for tick in 0..=(length / distance.value() + 1e-9) as u32 {
        let x = left + width * f64::from(tick) * distance.value() / length;
        page.append(line("axis", (x, y), (x, y + 5.0)));
        let label = format!("{} {unit}", distance.label(tick));
        page.append(text("tick", x, y + 19.0, label));
    }
}

/// The distance between two ticks: 1, 2 or 5 times a power of ten.
struct TickDistance {
    digit: f64,
    exponent: i32,
}

impl TickDistance {
    /// The shortest distance with few enough ticks.
    fn for_length(length: f64) -> Self {
        let shortest = length / MOST_TICKS;
        let exponent = shortest.log10().floor() as i32;
        let distances = [1.0, 2.0, 5.0].map(|digit| Self { digit, exponent });
        let is_long = |distance: &Self| distance.value() >= shortest;
        distances.into_iter().find(is_long).unwrap_or(Self {
            digit: 1.0,
            exponent: exponent + 1,
        })
    }

    fn value(&self) -> f64 {
        self.digit * 10f64.powi(self.exponent)
    }

    /// As many decimals as the distance has.
    fn label(&self, tick: u32) -> String {
        let decimals = usize::try_from(-self.exponent).unwrap_or(0);
        format!("{:.decimals$}", f64::from(tick) * self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(length: f64, second_label: &str) {
        let distance = TickDistance::for_length(length);
        assert_eq!(distance.label(1), second_label, "{length}");
        assert!(length / distance.value() <= MOST_TICKS);
    }

    #[test]
    fn distances_are_round_numbers() {
        check(10.0, "1");
        check(11.0, "2");
        check(36.0, "5");
        check(99.0, "10");
        check(123.0, "20");
        check(4567.0, "500");
        check(1.0, "0.1");
        check(0.04, "0.005");
    }
}
