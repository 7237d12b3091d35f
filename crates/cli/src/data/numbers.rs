//! Numbers and their names, made by rule: what an adapter can learn in a minute.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use stovepipe_chat::Example;
use stovepipe_text::Tokenizer;

use super::{
    data_set::{Contents, DataSet, TextData, TextSamples},
    examples::sets,
    fingerprint::{fingerprint, hashed},
    text::{beside, tokenizer_of},
    text_sets::TextSets,
};
use crate::error::{CliError, usage};

/// The numbers to train on; the others up to 999 are held out.
const TRAINING: usize = 800;
/// How an answer ends.
const END: &str = "\n";

/// The names of the numbers from 1 to 999: "Q: 347", "A: three hundred and forty and seven"
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Numbers {
    /// A tokenizer.json of Hugging Face [default: each byte is a token]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

impl DataSet for Numbers {
    fn contents(&self) -> Contents<'_> {
        Contents::Text(self)
    }

    fn usual_samples(&self) -> usize {
        TRAINING
    }

    fn may_change(&self) -> &'static [&'static str] {
        &["tokenizer"]
    }

    fn adopt(&mut self, folder: &Path, vocabulary: usize) {
        self.tokenizer = self.tokenizer.take().or(beside(folder, vocabulary));
    }

    fn set_tokenizer(&mut self, file: PathBuf) {
        self.tokenizer = Some(file);
    }
}

impl Numbers {
    /// All examples in a fixed random order.
    fn examples(&self, length: usize) -> Result<Vec<Example>, CliError> {
        let tokenizer = self.tokenizer()?;
        let mut numbers: Vec<usize> = (1..1000).collect();
        numbers.shuffle(&mut ChaCha8Rng::seed_from_u64(0));
        let example = |number: usize| {
            let mut tokens = tokenizer.encode(&format!("Q: {number}"))?;
            let mut learned = vec![false; tokens.len()];
            tokens.extend(tokenizer.encode(&format!(" A: {}{END}", name(number)))?);
            learned.resize(tokens.len(), true);
            let needed = tokens.len() - 1;
            if needed > length {
                return Err(usage!(
                    "the name of {number} takes {needed} tokens: --length is {length}"
                ));
            }
            Ok::<_, CliError>(Example { tokens, learned })
        };
        numbers.into_iter().map(example).collect()
    }
}

impl TextData for Numbers {
    fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        tokenizer_of(self.tokenizer.as_deref())
    }

    fn tokenizer_file(&self) -> Option<PathBuf> {
        self.tokenizer.clone()
    }

    fn tokens(&self, _: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        let examples = self.examples(usize::MAX)?;
        Ok(examples
            .into_iter()
            .flat_map(|example| example.tokens)
            .collect())
    }

    fn load(&self, samples: TextSamples) -> Result<TextSets, CliError> {
        let mut training = self.examples(samples.length)?;
        let testing = training.split_off(TRAINING);
        let tokens = self.tokens(&self.tokenizer()?)?;
        let parts = [(
            "numbers",
            hashed(tokens.iter().map(|token| token.to_le_bytes())),
        )];
        let (of_both, about) = ([training, testing], "names of numbers");
        Ok(sets(
            of_both,
            samples.micro_batches,
            about,
            fingerprint(parts),
        ))
    }

    fn load_whole(&self, samples: TextSamples) -> Result<TextSets, CliError> {
        self.load(samples)
    }

    fn end(&self) -> Result<Option<u32>, CliError> {
        Ok(self.tokenizer()?.encode(END)?.last().copied())
    }
}

/// Its parts, joined by "and".
fn name(number: usize) -> String {
    const SMALL: [&str; 19] = [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 8] = [
        "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    ];
    let (hundreds, rest) = (number / 100, number % 100);
    let mut parts = Vec::new();
    if hundreds > 0 {
        parts.push(format!("{} hundred", SMALL[hundreds - 1]));
    }
    if rest >= 20 {
        parts.push(TENS[rest / 10 - 2].to_owned());
    }
    match if rest < 20 { rest } else { rest % 10 } {
        0 => {}
        small => parts.push(SMALL[small - 1].to_owned()),
    }
    parts.join(" and ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        for (number, expected) in [
            (7, "seven"),
            (13, "thirteen"),
            (40, "forty"),
            (300, "three hundred"),
            (312, "three hundred and twelve"),
            (347, "three hundred and forty and seven"),
            (999, "nine hundred and ninety and nine"),
        ] {
            assert_eq!(name(number), expected);
        }
        let samples = TextSamples {
            length: 100,
            seed: 0,
            micro_batches: 4,
        };
        let sets = Numbers::default().load(samples).unwrap();
        assert_eq!(
            (sets.source.training_samples(), sets.answers.len()),
            (800, 199)
        );
        let all: std::collections::BTreeSet<_> = (1..1000).map(name).collect();
        assert_eq!(all.len(), 999);
    }
}
