//! Numbers and names as the page writes them.

use stovepipe_schedule::format_bytes;

/// Stands for a value that is missing, NaN or infinite.
pub(crate) const NONE: &str = "–";
/// A space without a line break, between a number and its unit.
pub(crate) const SPACE: char = '\u{a0}';

/// A number with the given decimals, or with an exponent if it is very small or very large.
pub(crate) fn decimal(value: f64, decimals: usize) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => NONE.to_owned(),
        1e7.. => power(value),
        1e4.. => whole(value),
        _ if size == 0.0 => "0".to_owned(),
        _ if size < 0.1f64.powi(decimals as i32) / 2.0 => power(value),
        _ => format!("{value:.decimals$}"),
    }
}

/// A number with three significant digits, without trailing zeros.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        return power(value);
    }
    if size >= 100.0 || size == 0.0 {
        return whole(value);
    }
    let decimals = (2.0 - size.log10().floor()).max(0.0) as usize;
    without_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// A number that has decimals, without trailing zeros.
fn without_zeros(number: &str) -> &str {
    number.trim_end_matches('0').trim_end_matches('.')
}

/// A number with an exponent and at most three digits.
pub(crate) fn power(value: f64) -> String {
    let text = format!("{value:.2e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e{exponent}", without_zeros(digits))
}

/// A share from 0 to 1, in percent.
pub(crate) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.to_owned();
    }
    format!("{}{SPACE}%", decimal(100.0 * share, 1))
}

pub(crate) fn count(number: u64) -> String {
    with_commas(&number.to_string())
}

pub(crate) fn whole(number: f64) -> String {
    with_commas(&format!("{number:.0}"))
}

/// A count with its noun.
pub(crate) fn things(number: u64, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{} {noun}", count(number))
}

/// A text with a capital.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn with_commas(digits: &str) -> String {
    let sign = if digits.starts_with('-') { "-" } else { "" };
    let digits = &digits[sign.len()..];
    let mut text = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration with at most two units.
pub(crate) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return NONE.to_owned();
    }
    let whole = seconds.round() as u64;
    let (minutes, hours) = (whole / 60, whole / 3600);
    let two = |large, large_unit, small: u64, small_unit| {
        let large = count(large);
        format!("{large}{SPACE}{large_unit} {small}{SPACE}{small_unit}")
    };
    match whole {
        0..60 => format!("{}{SPACE}s", decimal(seconds, 1)),
        60..3600 => two(minutes, "min", whole % 60, "s"),
        3600..86_400 => two(hours, "h", minutes % 60, "min"),
        _ => two(hours / 24, "d", hours % 24, "h"),
    }
}

/// The size of a file.
pub(crate) fn file_size(bytes: u64) -> String {
    format_bytes(bytes).replace(' ', "\u{a0}")
}

/// The first `most` characters of a text. Control characters, which HTML does not allow, and characters
/// that change the direction of text are replaced by `�`.
pub(crate) fn clip(text: &str, most: usize) -> String {
    let shown = text.chars().filter(|letter| *letter != '\r');
    let mut clipped: String = shown.clone().take(most).map(visible).collect();
    if shown.count() > most {
        clipped.truncate(clipped.trim_end().len());
        clipped.push('…');
    }
    clipped
}

fn visible(letter: char) -> char {
    let is_space = matches!(letter, '\n' | '\t');
    let is_direction = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_no_character =
        matches!(letter, '\u{fdd0}'..='\u{fdef}') || letter as u32 & 0xfffe == 0xfffe;
    if is_direction || is_no_character || (letter.is_control() && !is_space) {
        char::REPLACEMENT_CHARACTER
    } else {
        letter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T>(format: impl Fn(T) -> String, cases: impl IntoIterator<Item = (T, &'static str)>)
    where
        T: Copy + std::fmt::Debug,
    {
        for (value, expected) in cases {
            assert_eq!(format(value).replace(SPACE, " "), expected, "{value:?}");
        }
    }

    #[test]
    fn losses_have_four_decimals() {
        let loss = |value| decimal(value, 4);
        check(loss, [(0.5909463, "0.5909"), (-1.0, "-1.0000"), (0.0, "0")]);
        check(loss, [(2e-5, "2e-5"), (12345.6, "12,346"), (1e30, "1e30")]);
        check(loss, [(f64::NAN, NONE), (f64::NEG_INFINITY, NONE)]);
    }

    #[test]
    fn rates_have_three_digits() {
        check(short, [(0.004, "0.004"), (0.0054514, "0.00545")]);
        check(short, [(0.00001862810, "1.86e-5"), (3e-12, "3e-12")]);
        check(
            short,
            [(0.0, "0"), (1.0, "1"), (10.0, "10"), (99.26, "99.3")],
        );
        check(short, [(1234.5, "1,234"), (f64::INFINITY, NONE)]);
    }

    #[test]
    fn shares_are_percentages() {
        check(percent, [(0.98333, "98.3 %"), (1.0, "100.0 %")]);
        check(percent, [(0.0, "0 %"), (f64::NAN, NONE)]);
    }

    #[test]
    fn large_numbers_have_commas() {
        check(count, [(0, "0"), (999, "999"), (1000, "1,000")]);
        check(count, [(101_326, "101,326"), (1_000_000, "1,000,000")]);
    }

    #[test]
    fn durations_have_two_units() {
        check(duration, [(0.0, "0 s"), (9.87, "9.9 s"), (-1.0, NONE)]);
        check(duration, [(59.6, "1 min 0 s"), (93.9, "1 min 34 s")]);
        check(duration, [(11_520.0, "3 h 12 min"), (100_000.0, "1 d 3 h")]);
        let longest = "213,503,982,334,601 d 7 h";
        check(duration, [(f64::NAN, NONE), (f64::MAX, longest)]);
    }

    #[test]
    fn long_texts_are_clipped_between_characters() {
        let three = |text| clip(text, 3);
        check(three, [("abc", "abc"), ("abcd", "abc…"), ("äöüß", "äöü…")]);
        check(three, [("a  b", "a…"), ("a\r\nb", "a\nb")]);
        check(three, [("\0\u{1b}\u{202e}", "\u{fffd}\u{fffd}\u{fffd}")]);
        check(three, [("\u{ffff}\u{1fffe}\t", "\u{fffd}\u{fffd}\t")]);
    }
}
