use std::{fmt, str::FromStr};

use crate::ChatError;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A day from 1970 on, for chat templates that write today's date.
///
/// ```
/// use stovepipe_chat::Day;
///
/// let day: Day = "2024-07-26".parse()?;
/// assert_eq!(day.to_string(), "2024-07-26");
/// assert!("2023-02-29".parse::<Day>().is_err());
/// # Ok::<(), stovepipe_chat::ChatError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Day {
    year: usize,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: usize,
}

impl FromStr for Day {
    type Err = ChatError;

    fn from_str(text: &str) -> Result<Self, ChatError> {
        parse(text).ok_or_else(|| ChatError::NotADay(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Day> {
    let only_digits = |byte: u8| byte.is_ascii_digit() || byte == b'-';
    if text.len() != "2024-07-26".len() || !text.bytes().all(only_digits) {
        return None;
    }
    let mut parts = text.splitn(3, '-').map(str::parse);
    let mut part = || parts.next()?.ok();
    let (year, month, day) = (part()?, part()?, part()?);
    let is_day = year >= 1970
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day);
    is_day.then_some(Day { year, month, day })
}

fn days_of_month(year: usize, month: usize) -> usize {
    let leaps = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    match month {
        2 => 28 + usize::from(leaps),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// As `2024-07-26`.
impl fmt::Display for Day {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Day {
    /// Python's `strftime` in the C locale. An error is the code that a day does not have, such as
    /// the hour.
    pub(crate) fn strftime(self, format: &str) -> Result<String, String> {
        let mut written = String::new();
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                written.push(character);
                continue;
            }
            let mut code = rest.next();
            let without_zeros = code == Some('-');
            if without_zeros {
                code = rest.next();
            }
            let code = code.unwrap_or('%');
            let part = self.part(code, without_zeros);
            written += &part.ok_or_else(|| format!("%{code}"))?;
        }
        Ok(written)
    }

    fn part(self, code: char, without_zeros: bool) -> Option<String> {
        let number = |number: usize, width: usize| {
            let width = if without_zeros { 0 } else { width };
            Some(format!("{number:0width$}"))
        };
        let month = MONTHS.get(self.month - 1).copied().unwrap_or_default();
        let weekday = WEEKDAYS.get(self.weekday()).copied().unwrap_or_default();
        let short = |name: &str| Some(name.chars().take(3).collect());
        match code {
            'Y' => number(self.year, 4),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'e' if without_zeros => Some(self.day.to_string()),
            'e' => Some(format!("{:2}", self.day)),
            'j' => number(self.day_of_year(), 3),
            'B' => Some(month.to_owned()),
            'b' | 'h' => short(month),
            'A' => Some(weekday.to_owned()),
            'a' => short(weekday),
            'w' => Some(self.weekday().to_string()),
            'F' => Some(self.to_string()),
            '%' => Some("%".to_owned()),
            _ => None,
        }
    }

    fn day_of_year(self) -> usize {
        let before = (1..self.month).map(|month| days_of_month(self.year, month));
        before.sum::<usize>() + self.day
    }

    /// 0 for Sunday.
    fn weekday(self) -> usize {
        let before = self.year - 1;
        let leaps = before / 4 - before / 100 + before / 400;
        // The first of January of year 1 was a Monday.
        (before + leaps + self.day_of_year()) % 7
    }
}
