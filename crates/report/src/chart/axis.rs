//! Axes: positions of values, ticks and their labels.

use super::ValueScale;
use crate::number;

/// The axis is logarithmic where values differ by this factor or more.
const WIDE: f64 = 30.0;
/// The smallest value of a logarithmic axis; powers of ten underflow not far below.
const LEAST: f64 = 1e-100;
/// The approximate number of intervals between ticks.
const INTERVALS: f64 = 5.0;
const MOST_TICKS: usize = 8;

/// An axis from the lowest to the highest value shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    lowest: f64,
    highest: f64,
    pub is_logarithmic: bool,
    /// Values and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis for numbers from `low` to `high`, both drawable.
    pub fn new(low: f64, high: f64, scale: ValueScale) -> Self {
        match scale {
            ValueScale::Wide if low > LEAST && high / low >= WIDE => Self::logarithmic(low, high),
            ValueScale::Wide => Self::linear(low, high, number_label),
            ValueScale::FromZero => Self::linear(low.min(0.0), high.max(0.0), number_label),
            ValueScale::Shares => Self::linear(low, high, percent_label).within_one(),
        }
    }

    /// An axis of whole numbers, from exactly the first to the last.
    pub fn of_counts(first: usize, last: usize) -> Self {
        let (lowest, highest) = (first as f64, last as f64);
        let step = TickStep::at_least((highest - lowest) / 6.0).value();
        let epochs = ticks(lowest, highest, step.max(1.0)).into_iter();
        let label = |epoch: f64| (epoch, number::count(epoch as u64));
        Self {
            lowest,
            highest,
            is_logarithmic: false,
            ticks: epochs.map(label).collect(),
        }
    }

    fn linear(low: f64, high: f64, label: fn(f64, &TickStep, f64) -> String) -> Self {
        let (low, high) = with_extent(low, high);
        let step = TickStep::at_least((high - low) / INTERVALS);
        let width = step.value();
        let (lowest, highest) = ((low / width).floor() * width, (high / width).ceil() * width);
        let ticks = ticks(lowest, highest, width).into_iter();
        let largest = lowest.abs().max(highest.abs());
        let label = |tick| (tick, label(tick, &step, largest));
        Self {
            lowest,
            highest,
            is_logarithmic: false,
            ticks: ticks.map(label).collect(),
        }
    }

    /// Limits the axis to 0 to 1, if two ticks remain.
    fn within_one(mut self) -> Self {
        let is_share = |(tick, _): &(f64, String)| (-1e-9..=1.0 + 1e-9).contains(tick);
        if self.ticks.iter().filter(|tick| is_share(tick)).count() >= 2 {
            self.ticks.retain(is_share);
            self.lowest = self.lowest.max(0.0);
            self.highest = self.highest.min(1.0);
        }
        self
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        // Ticks at 1, 2 and 5 times powers of ten; if these are too many, at powers of ten.
        let mut ticks = decimal_steps(low, high, &[1.0, 2.0, 5.0], 1);
        if ticks.len() > MOST_TICKS {
            let decades = (high.log10() - low.log10()).ceil() as usize;
            ticks = decimal_steps(low, high, &[1.0], decades.div_ceil(MOST_TICKS - 2).max(1));
        }
        let label = |tick| (tick, number::short(tick));
        Self {
            lowest: ticks.first().map_or(low, |tick| tick.min(low)),
            highest: ticks.last().map_or(high, |tick| tick.max(high)),
            is_logarithmic: true,
            ticks: ticks.into_iter().map(label).collect(),
        }
    }

    /// The position of a value: 0 for the lowest, 1 for the highest.
    pub fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| {
            if self.is_logarithmic {
                value.log10()
            } else {
                value
            }
        };
        let (value, low, high) = (scale(value), scale(self.lowest), scale(self.highest));
        if high > low {
            ((value - low) / (high - low)).clamp(0.0, 1.0)
        } else {
            0.5
        }
    }
}

/// Widens a range that is empty, or so narrow that its ticks would have equal labels.
fn with_extent(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if high - low > 1e-6 * size {
        (low, high)
    } else if size > 0.0 {
        (low - 0.1 * size, high + 0.1 * size)
    } else {
        (0.0, 1.0)
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

/// The multiples by `digits` of each `every`-th power of ten, from one that is at most `low` to one that
/// is at least `high`.
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

/// The distance between ticks: 1, 2 or 5 times a power of ten.
struct TickStep {
    digit: f64,
    exponent: i32,
}

impl TickStep {
    /// The smallest step that is `least` or more.
    fn at_least(least: f64) -> Self {
        let exponent = least.max(1e-300).log10().floor() as i32;
        let steps = [1.0, 2.0, 5.0].map(|digit| Self { digit, exponent });
        let is_enough = |step: &Self| step.value() >= least * (1.0 - 1e-9);
        steps.into_iter().find(is_enough).unwrap_or(Self {
            digit: 1.0,
            exponent: exponent + 1,
        })
    }

    fn value(&self) -> f64 {
        self.digit * 10f64.powi(self.exponent)
    }
}

/// A label with as many decimals as the step; with an exponent where numbers are too long.
fn number_label(tick: f64, step: &TickStep, largest: f64) -> String {
    // Rounding may leave a zero tick slightly off.
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

fn percent_label(tick: f64, step: &TickStep, _: f64) -> String {
    let decimals = usize::try_from(-2 - step.exponent).unwrap_or(0).min(4);
    format!("{:.decimals$}{}%", 100.0 * tick, number::SPACE)
}

#[cfg(test)]
mod tests {
    use super::{ValueScale::*, *};

    fn labels(axis: &Axis) -> String {
        let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        labels.join(" | ").replace(number::SPACE, "")
    }

    #[test]
    fn ticks_are_round_numbers() {
        let powers = "1e-80 | 1e-53 | 1e-26 | 10 | 1e28 | 1e55 | 1e82";
        let millions = "0 | 5e5 | 1e6 | 1.5e6 | 2e6 | 2.5e6";
        let narrow = "98.30% | 98.35% | 98.40% | 98.45% | 98.50%";
        for (low, high, scale, expected) in [
            (0.56, 3.37, Wide, "0 | 1 | 2 | 3 | 4"),
            (0.56, 1.5, Wide, "0.4 | 0.6 | 0.8 | 1.0 | 1.2 | 1.4 | 1.6"),
            (-0.3, 0.3, Wide, "-0.4 | -0.2 | 0 | 0.2 | 0.4"),
            (2.0, 2.0, Wide, "1.8 | 1.9 | 2.0 | 2.1 | 2.2"),
            (0.0, 0.0, Wide, "0 | 0.2 | 0.4 | 0.6 | 0.8 | 1.0"),
            (2.9, 7.0, Wide, "2 | 3 | 4 | 5 | 6 | 7"),
            (0.6, 19.0, Wide, "0.5 | 1 | 2 | 5 | 10 | 20"),
            (3.0, 9000.0, Wide, "1 | 10 | 100 | 1,000 | 10,000"),
            (1e-80, 1e80, Wide, powers),
            (0.0, 0.004, FromZero, "0 | 0.001 | 0.002 | 0.003 | 0.004"),
            (1e-9, 3e-6, FromZero, "0 | 1e-6 | 2e-6 | 3e-6"),
            (99.0, 146.0, FromZero, "0 | 50 | 100 | 150"),
            (0.0, 123_456.0, FromZero, "0 | 50,000 | 100,000 | 150,000"),
            (0.0, 2.1e6, FromZero, millions),
            (0.375, 0.9994, Shares, "20% | 40% | 60% | 80% | 100%"),
            (0.983, 0.985, Shares, narrow),
            (1.0, 1.0, Shares, "90% | 95% | 100%"),
            (0.0, 0.0, Shares, "0% | 20% | 40% | 60% | 80% | 100%"),
        ] {
            let axis = Axis::new(low, high, scale);
            assert_eq!(labels(&axis), expected, "{low} to {high}, {scale:?}");
            assert!(axis.ticks.len() <= MOST_TICKS + 1, "{low} to {high}");
            for value in [low, high] {
                assert!((0.0..=1.0).contains(&axis.place(value)));
            }
            assert!(axis.place(low) <= axis.place(high));
        }
    }

    #[test]
    fn any_numbers_have_an_axis() {
        let positive = [0.0, 5e-324, 1e-20, 0.1, 1.0, 1.0 + 1e-15, 9e99];
        let numbers = [&[-9e99, -1.0, -1e-300], &positive[..]].concat();
        for (index, &low) in numbers.iter().enumerate() {
            for &high in &numbers[index..] {
                for scale in [Wide, FromZero, Shares] {
                    let axis = Axis::new(low, high, scale);
                    let count = axis.ticks.len();
                    let case = format!("{low} to {high}, {scale:?}: {axis:?}");
                    assert!((1..=12).contains(&count), "{case}");
                    let places = [axis.place(low), axis.place(high)];
                    assert!(places.iter().all(|place| place.is_finite()), "{case}");
                }
            }
        }
    }

    #[test]
    fn epochs_are_whole() {
        for (first, last, expected) in [
            (1, 1, "1"),
            (1, 2, "1 | 2"),
            (1, 8, "2 | 4 | 6 | 8"),
            (3, 9, "3 | 4 | 5 | 6 | 7 | 8 | 9"),
            (1, 30, "5 | 10 | 15 | 20 | 25 | 30"),
            (1, 10_000, "2,000 | 4,000 | 6,000 | 8,000 | 10,000"),
        ] {
            let axis = Axis::of_counts(first, last);
            assert_eq!(labels(&axis), expected, "{first} to {last}");
        }
    }
}
