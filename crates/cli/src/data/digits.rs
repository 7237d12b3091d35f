//! The handwritten digits that are part of the program.

use std::{fmt::Write, str::FromStr};

use burn::tensor::{Int, Tensor};
use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::train::{Data, data::Fingerprint};
use stovepipe_digits::{CLASSES, DigitBatcher, Digits as Images, MEAN, STD};
use stovepipe_imagenet::Loading;

use super::{
    data_set::{Contents, DataSet, ImageData},
    images::{Classes, ImageSets, first, small_view},
};
use crate::{choice::Configurable, error::CliError};

const WHITE: f32 = 16.0;

/// 1,797 handwritten digits, part of this program
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Digits {
    /// Digits to train on, such as 5-9 or 1,3,5
    #[arg(long, value_name = "DIGITS", default_value = "0-9")]
    digits: DigitsSetting,
    /// Training images of each digit, drawn by the seed; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    per_class: usize,
}

impl DataSet for Digits {
    fn contents(&self) -> Contents<'_> {
        Contents::Images(self)
    }

    fn usual_samples(&self) -> usize {
        1437
    }
}

impl ImageData for Digits {
    fn usual_classes(&self) -> usize {
        self.digits.0.len()
    }

    fn load(&self, seed: u64) -> Result<ImageSets, CliError> {
        let DigitsSetting(digits) = &self.digits;
        let (train, test) = (Images::train()?.only(digits), Images::test()?.only(digits));
        let train = match self.per_class {
            0 => train,
            images => train.few(images, seed),
        };
        let data = Data::new(train, test, Classes(DigitBatcher));
        let classes = digits.iter().map(u8::to_string).collect();
        let (place, settings) = (Configurable::name(self), Fingerprint::new());
        Ok(ImageSets::new(place, data, classes, settings))
    }

    fn first(&self, samples: usize) -> Result<(Tensor<4>, Tensor<1, Int>), CliError> {
        Ok(first(&Images::train()?, &DigitBatcher, samples))
    }

    fn view(&self) -> Loading {
        small_view([MEAN / WHITE; 3], [STD / WHITE; 3])
    }
}

/// Some digits: `5-9`, or `1,3,5`. Each is a class, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct DigitsSetting(Vec<u8>);

impl FromStr for DigitsSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digit = |text: &str| match text.trim().parse() {
            Ok(digit) if usize::from(digit) < CLASSES => Ok::<u8, _>(digit),
            _ => Err(format!(
                "{text:?} is not a digit from 0 to 9: write 5-9, or 1,3,5"
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
            0 | 1 => Err("name two digits or more: with one there is nothing to classify".into()),
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
    fn a_text_that_names_no_digits_is_an_error() {
        for (text, reason) in [
            ("", "not a digit"),
            ("10", "not a digit"),
            ("-1", "not a digit"),
            ("a-b", "not a digit"),
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
