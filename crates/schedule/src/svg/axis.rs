//! The time axis below the rows.

use std::time::Duration;

use ::svg::{Document, Node};

use super::{line, scale::Scale, text};

/// What the axis needs below the last row.
pub(super) const HEIGHT: f64 = 40.0;
const MOST_TICKS: f64 = 10.0;

pub(super) fn draw(page: &mut Document, scale: &Scale, y: f64) {
    let end = scale.x(scale.length);
    page.append(line("axis", (scale.x(Duration::ZERO), y), (end, y)));
    let milliseconds = scale.length.as_secs_f64() * 1e3;
    if milliseconds == 0.0 {
        return;
    }
    let step = Step::for_length(milliseconds);
    for tick in 0..=(milliseconds / step.value()) as u32 {
        let x = scale.x(Duration::from_secs_f64(
            f64::from(tick) * step.value() / 1e3,
        ));
        page.append(line("axis", (x, y), (x, y + 5.0)));
        page.append(text("tick", x, y + 19.0, step.label(tick)));
    }
}

/// The distance of two ticks in milliseconds: 1, 2 or 5 times a power of ten.
struct Step {
    digit: f64,
    exponent: i32,
}

impl Step {
    /// The shortest distance that gives few enough ticks.
    fn for_length(milliseconds: f64) -> Self {
        let shortest = milliseconds / MOST_TICKS;
        let exponent = shortest.log10().floor() as i32;
        let steps = [1.0, 2.0, 5.0].map(|digit| Self { digit, exponent });
        let long_enough = steps.into_iter().find(|step| step.value() >= shortest);
        long_enough.unwrap_or(Self {
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
        format!("{:.decimals$} ms", f64::from(tick) * self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(milliseconds: f64, second_label: &str) {
        let step = Step::for_length(milliseconds);
        assert_eq!(step.label(1), second_label, "{milliseconds} ms");
        assert!(milliseconds / step.value() <= MOST_TICKS);
    }

    #[test]
    fn steps_are_round_numbers() {
        check(10.0, "1 ms");
        check(11.0, "2 ms");
        check(36.0, "5 ms");
        check(99.0, "10 ms");
        check(123.0, "20 ms");
        check(4567.0, "500 ms");
        check(1.0, "0.1 ms");
        check(0.04, "0.005 ms");
    }
}
