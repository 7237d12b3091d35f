//! Which of the handwritten digits are trained on.

use std::{fmt::Write, str::FromStr};

use serde::{Deserialize, Serialize};
use stovepipe_digits::{CLASSES, Digits, DigitsError};

use super::DataSettings;

/// Some digits, as flags and configurations write them: `5-9`, or `1,3,5`. Each is a class, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DigitsSetting(Vec<u8>);

impl DigitsSetting {
    /// The names of the classes.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(u8::to_string).collect()
    }
}

impl Default for DigitsSetting {
    fn default() -> Self {
        Self((0..CLASSES as u8).collect())
    }
}

impl FromStr for DigitsSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digit = |text: &str| match text.trim().parse() {
            Ok(digit) if usize::from(digit) < CLASSES => Ok::<u8, String>(digit),
            _ => Err(format!(
                "{text:?} is no digit from 0 to 9: write 5-9, or 1,3,5"
            )),
        };
        let mut digits = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            digits.extend(digit(first)?..=digit(last)?);
        }
        let mut sorted = digits.clone();
        sorted.sort_unstable();
        sorted.dedup();
        match sorted.len() {
            found if found < digits.len() => Err(format!("{text:?} names a digit twice")),
            0 | 1 => Err("name two digits or more: there is nothing to tell apart".to_owned()),
            _ => Ok(Self(digits)),
        }
    }
}

impl TryFrom<String> for DigitsSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DigitsSetting> for String {
    fn from(DigitsSetting(digits): DigitsSetting) -> Self {
        let mut text = String::new();
        for run in digits.chunk_by(|before, after| before + 1 == *after) {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = match run {
                [first, .., last] => write!(text, "{comma}{first}-{last}"),
                alone => write!(text, "{comma}{}", alone[0]),
            };
        }
        text
    }
}

impl DataSettings {
    /// The digits to train on and to test with.
    pub(super) fn digit_sets(&self, seed: u64) -> Result<(Digits, Digits), DigitsError> {
        let DigitsSetting(digits) = self.digits();
        let (train, test) = (
            Digits::train()?.only(&digits),
            Digits::test()?.only(&digits),
        );
        let train = match self.per_class {
            None | Some(0) => train,
            Some(images) => train.few(images, seed),
        };
        Ok((train, test))
    }

    /// The digits that are classes.
    pub(super) fn digits(&self) -> DigitsSetting {
        self.digits.clone().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(text: &str, digits: &[u8], written: &str) {
        let setting: DigitsSetting = text.parse().unwrap();
        assert_eq!(setting.0, digits, "{text}");
        assert_eq!(String::from(setting), written);
    }

    #[test]
    fn digits_are_written_one_by_one_or_from_one_to_another() {
        check("5-9", &[5, 6, 7, 8, 9], "5-9");
        check("1,3,5-7", &[1, 3, 5, 6, 7], "1,3,5-7");
        check(" 7, 2 ", &[7, 2], "7,2");
        check("0-9", &(0..=9).collect::<Vec<_>>(), "0-9");
    }

    #[test]
    fn what_names_no_digits_says_so() {
        for (text, reason) in [
            ("", "no digit"),
            ("10", "no digit"),
            ("-1", "no digit"),
            ("a-b", "no digit"),
            ("1,1", "twice"),
            ("1-3,2", "twice"),
            ("4", "two digits or more"),
            ("9-5", "two digits or more"),
        ] {
            let error = text.parse::<DigitsSetting>().unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
