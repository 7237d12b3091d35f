//! Where values go, and what is written beside them.

use super::Values;
use crate::number;

/// Values that differ by so large a factor are drawn on a logarithmic axis.
const WIDE: f64 = 30.0;
/// Nobody asks for the logarithm of less, and powers of ten end soon below.
const LEAST: f64 = 1e-100;
/// There are about so many stretches between ticks.
const STRETCHES: f64 = 5.0;
/// There is room for so many ticks at most.
const MOST_TICKS: usize = 8;

/// An axis from the lowest to the highest value that is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    lowest: f64,
    highest: f64,
    pub is_logarithmic: bool,
    /// Values, and what is written beside them.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis that has room for numbers from `low` to `high`, both drawable.
    pub fn of(low: f64, high: f64, values: Values) -> Self {
        match values {
            Values::Wide if low > LEAST && high / low >= WIDE => Self::logarithmic(low, high),
            Values::Wide => Self::linear(low, high, number_label),
            Values::FromZero => Self::linear(low.min(0.0), high.max(0.0), number_label),
            Values::Shares => Self::linear(low, high, percent_label).within_one(),
        }
    }

    /// An axis of whole numbers, from the first to the last exactly.
    pub fn of_epochs(first: usize, last: usize) -> Self {
        let (low, high) = (first as f64, last as f64);
        let step = Step::at_least((high - low) / 6.0).value().max(1.0);
        let label = |epoch: f64| number::count(epoch as u64);
        let ticks = match first == last {
            true => vec![(low, label(low))],
            false => (ticks(low, high, step).into_iter())
                .map(|epoch| (epoch, label(epoch)))
                .collect(),
        };
        Self {
            lowest: low,
            highest: high,
            is_logarithmic: false,
            ticks,
        }
    }

    fn linear(low: f64, high: f64, label: fn(f64, &Step, f64) -> String) -> Self {
        let (low, high) = with_room(low, high);
        let step = Step::at_least((high - low) / STRETCHES);
        let width = step.value();
        let (lowest, highest) = ((low / width).floor() * width, (high / width).ceil() * width);
        let ticks = ticks(lowest, highest, width);
        let largest = lowest.abs().max(highest.abs());
        Self {
            lowest,
            highest,
            is_logarithmic: false,
            ticks: (ticks.into_iter())
                .map(|tick| (tick, label(tick, &step, largest)))
                .collect(),
        }
    }

    /// No share is below nothing or above all.
    fn within_one(mut self) -> Self {
        let is_share = |value: f64| (-1e-9..=1.0 + 1e-9).contains(&value);
        if self
            .ticks
            .iter()
            .filter(|(tick, _)| is_share(*tick))
            .count()
            >= 2
        {
            self.ticks.retain(|(tick, _)| is_share(*tick));
            self.lowest = self.lowest.max(0.0);
            self.highest = self.highest.min(1.0);
        }
        self
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        // Ticks at 1, 2 and 5 times a power of ten, at powers only, or at every so manieth of them.
        let fine = decimal_steps(low, high, &[1.0, 2.0, 5.0], 1);
        let ticks = match fine.len() <= MOST_TICKS {
            true => fine,
            false => {
                let decades = (high.log10() - low.log10()).ceil() as usize;
                decimal_steps(low, high, &[1.0], decades.div_ceil(MOST_TICKS - 2).max(1))
            }
        };
        Self {
            lowest: ticks.first().map_or(low, |tick| tick.min(low)),
            highest: ticks.last().map_or(high, |tick| tick.max(high)),
            is_logarithmic: true,
            ticks: (ticks.into_iter())
                .map(|tick| (tick, number::short(tick)))
                .collect(),
        }
    }

    /// The place of a value: 0 for the lowest, 1 for the highest.
    pub fn place(&self, value: f64) -> f64 {
        let (value, low, high) = match self.is_logarithmic {
            true => (value.log10(), self.lowest.log10(), self.highest.log10()),
            false => (value, self.lowest, self.highest),
        };
        match high > low {
            true => ((value - low) / (high - low)).clamp(0.0, 1.0),
            false => 0.5,
        }
    }
}

/// Numbers that are all the same need an axis, too.
fn with_room(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    // Where the difference drowns in the numbers' own last digits, ticks would be all alike.
    match high - low > 1e-6 * size {
        true => (low, high),
        false if size > 0.0 => (low - 0.1 * size, high + 0.1 * size),
        false => (0.0, 1.0),
    }
}

/// The multiples of `step` from `low` to `high`.
fn ticks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let slack = 1e-6;
    let first = (low / step - slack).ceil();
    let count = (high / step + slack).floor() - first;
    // Adding zero makes a negative zero a plain one.
    (0..=count.max(0.0) as u32)
        .map(|tick| (first + f64::from(tick)) * step + 0.0)
        .collect()
}

/// The `digits`' multiples of every so manieth power of ten, from one that is not above `low` to one
/// that is not below `high`.
fn decimal_steps(low: f64, high: f64, digits: &[f64], every: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let powers = (first..=last + every as i32).step_by(every);
    let all: Vec<f64> = powers
        .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
        .collect();
    let begin = all.iter().rposition(|tick| *tick <= low * (1.0 + 1e-9));
    let end = all.iter().position(|tick| *tick >= high * (1.0 - 1e-9));
    let end = end.unwrap_or(all.len() - 1);
    all[begin.unwrap_or(0).min(end)..=end].to_vec()
}

/// The distance of two ticks: 1, 2 or 5 times a power of ten.
struct Step {
    digit: f64,
    exponent: i32,
}

impl Step {
    /// The smallest that is not below `least`.
    fn at_least(least: f64) -> Self {
        let exponent = least.max(1e-300).log10().floor() as i32;
        let steps = [1.0, 2.0, 5.0].map(|digit| Self { digit, exponent });
        let long_enough = steps
            .into_iter()
            .find(|step| step.value() >= least * (1.0 - 1e-9));
        long_enough.unwrap_or(Self {
            digit: 1.0,
            exponent: exponent + 1,
        })
    }

    fn value(&self) -> f64 {
        self.digit * 10f64.powi(self.exponent)
    }
}

/// As many decimals as the distance has; as powers of ten if there is no room for the largest number.
fn number_label(tick: f64, step: &Step, largest: f64) -> String {
    // What is left of a sum of steps that should be zero is zero.
    if tick.abs() < step.value() / 2.0 {
        return "0".to_owned();
    }
    match step.exponent {
        _ if largest >= 1e6 => number::power(tick),
        0..=5 => number::whole(tick),
        -4..0 => format!("{tick:.0$}", step.exponent.unsigned_abs() as usize),
        _ => number::short(tick),
    }
}

fn percent_label(tick: f64, step: &Step, _: f64) -> String {
    let decimals = usize::try_from(-2 - step.exponent).unwrap_or(0).min(4);
    format!("{:.decimals$}{}%", 100.0 * tick, number::SPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> String {
        let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        labels.join(" | ").replace(number::SPACE, "")
    }

    fn check(low: f64, high: f64, values: Values, expected: &str) {
        let axis = Axis::of(low, high, values);
        assert_eq!(labels(&axis), expected, "{low} to {high}, {values:?}");
        assert!(axis.ticks.len() <= MOST_TICKS + 1, "{low} to {high}");
        for value in [low, high] {
            assert!((0.0..=1.0).contains(&axis.place(value)));
        }
        assert!(axis.place(low) <= axis.place(high));
    }

    #[test]
    fn ticks_are_round_numbers() {
        use Values::*;
        check(0.56, 3.37, Wide, "0 | 1 | 2 | 3 | 4");
        check(0.56, 1.5, Wide, "0.4 | 0.6 | 0.8 | 1.0 | 1.2 | 1.4 | 1.6");
        check(-0.3, 0.3, Wide, "-0.4 | -0.2 | 0 | 0.2 | 0.4");
        check(2.0, 2.0, Wide, "1.8 | 1.9 | 2.0 | 2.1 | 2.2");
        check(0.0, 0.0, Wide, "0 | 0.2 | 0.4 | 0.6 | 0.8 | 1.0");
        check(2.9, 7.0, Wide, "2 | 3 | 4 | 5 | 6 | 7");
        check(0.6, 19.0, Wide, "0.5 | 1 | 2 | 5 | 10 | 20");
        check(3.0, 9000.0, Wide, "1 | 10 | 100 | 1,000 | 10,000");
        check(
            1e-80,
            1e80,
            Wide,
            "1e-80 | 1e-53 | 1e-26 | 10 | 1e28 | 1e55 | 1e82",
        );
        check(0.0, 0.004, FromZero, "0 | 0.001 | 0.002 | 0.003 | 0.004");
        check(1e-9, 3e-6, FromZero, "0 | 1e-6 | 2e-6 | 3e-6");
        check(99.0, 146.0, FromZero, "0 | 50 | 100 | 150");
        check(0.0, 123_456.0, FromZero, "0 | 50,000 | 100,000 | 150,000");
        check(0.0, 2.1e6, FromZero, "0 | 5e5 | 1e6 | 1.5e6 | 2e6 | 2.5e6");
        check(0.375, 0.9994, Shares, "20% | 40% | 60% | 80% | 100%");
        check(
            0.983,
            0.985,
            Shares,
            "98.30% | 98.35% | 98.40% | 98.45% | 98.50%",
        );
        check(1.0, 1.0, Shares, "90% | 95% | 100%");
        check(0.0, 0.0, Shares, "0% | 20% | 40% | 60% | 80% | 100%");
    }

    #[test]
    fn any_numbers_have_an_axis() {
        let numbers = [
            -9e99,
            -1.0,
            -1e-300,
            0.0,
            5e-324,
            1e-20,
            0.1,
            1.0,
            1.0 + 1e-15,
            9e99,
        ];
        for (index, low) in numbers.into_iter().enumerate() {
            for high in numbers.into_iter().skip(index) {
                for values in [Values::Wide, Values::FromZero, Values::Shares] {
                    let axis = Axis::of(low, high, values);
                    let count = axis.ticks.len();
                    assert!(
                        (1..=12).contains(&count),
                        "{low} to {high}, {values:?}: {axis:?}"
                    );
                    for value in [low, high] {
                        assert!(axis.place(value).is_finite(), "{low} to {high}");
                    }
                }
            }
        }
    }

    #[test]
    fn epochs_are_whole() {
        let check = |first, last, expected: &str| {
            let axis = Axis::of_epochs(first, last);
            assert_eq!(labels(&axis), expected, "{first} to {last}");
        };
        check(1, 1, "1");
        check(1, 2, "1 | 2");
        check(1, 8, "2 | 4 | 6 | 8");
        check(3, 9, "3 | 4 | 5 | 6 | 7 | 8 | 9");
        check(1, 30, "5 | 10 | 15 | 20 | 25 | 30");
        check(1, 10_000, "2,000 | 4,000 | 6,000 | 8,000 | 10,000");
    }
}
