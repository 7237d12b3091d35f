//! Compares the n-gram model with a direct implementation of its definition.

use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;
use stovepipe_text::{NGram, Split, SplitSettings, Text, TextError, Tokenizer};

const VOCABULARY: usize = 5;

/// Chen & Goodman's equations. Each count reads the whole text.
struct Definition<'a> {
    text: &'a [u32],
    order: usize,
}

impl Definition<'_> {
    fn occurs(&self, gram: &[u32]) -> usize {
        let grams = self.text.windows(gram.len());
        grams.filter(|other| *other == gram).count()
    }

    /// c(gram) for the longest, N₁₊(· gram) for shorter ones.
    fn count(&self, gram: &[u32]) -> usize {
        if gram.len() == self.order {
            return self.occurs(gram);
        }
        let before = (0..VOCABULARY as u32).filter(|&token| {
            let longer = [&[token], gram].concat();
            self.occurs(&longer) > 0
        });
        before.count()
    }

    /// D₁, D₂, D₃₊ of grams of one length.
    fn discounts(&self, length: usize) -> [f64; 3] {
        let grams: BTreeSet<_> = self.text.windows(length).collect();
        let with = |count| {
            let grams = grams.iter().filter(|gram| self.count(gram) == count);
            grams.count() as f64
        };
        let n = [f64::NAN, with(1), with(2), with(3), with(4)];
        let y = n[1] / (n[1] + 2.0 * n[2]);
        let by_count = [
            1.0 - 2.0 * y * n[2] / n[1],
            2.0 - 3.0 * y * n[3] / n[2],
            3.0 - 4.0 * y * n[4] / n[3],
        ];
        let unknown = n[1..].contains(&0.0);
        [0, 1, 2].map(|index| {
            let usable = Some(by_count[index]).filter(|&discount| !unknown && discount > 0.0);
            usable.unwrap_or((index + 1) as f64 / 2.0)
        })
    }

    fn probability(&self, history: &[u32], token: u32) -> f64 {
        let history = &history[history.len().saturating_sub(self.order - 1)..];
        let shorter = match history {
            [] => 1.0 / VOCABULARY as f64,
            [_, rest @ ..] => self.probability(rest, token),
        };
        let count = |token: u32| self.count(&[history, &[token]].concat());
        let counts: Vec<_> = (0..VOCABULARY as u32).map(count).collect();
        let total: usize = counts.iter().sum();
        if total == 0 {
            return shorter;
        }
        let discounts = self.discounts(history.len() + 1);
        let discount = |count: usize| match count {
            0 => 0.0,
            1 | 2 => discounts[count - 1],
            _ => discounts[2],
        };
        let freed: f64 = counts.iter().map(|&count| discount(count)).sum();
        let count = counts[token as usize];
        ((count as f64 - discount(count)).max(0.0) + freed * shorter) / total as f64
    }
}

fn tokens(length: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
    // Most tokens are 0, and few are 4.
    let token = prop_oneof![8 => Just(0), 4 => Just(1), 2 => Just(2), 2 => Just(3), 1 => Just(4)];
    prop::collection::vec(token, length)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn probabilities_equal_those_of_the_definition(
        text in tokens(1..120), order in 1..=5_usize, history in tokens(0..7),
    ) {
        let model = NGram::fit(&text, VOCABULARY, order).unwrap();
        let definition = Definition { text: &text, order: order.min(text.len()) };
        for token in 0..VOCABULARY as u32 {
            let (found, expected) = (model.probability(&history, token), definition.probability(&history, token));
            prop_assert!((found / expected - 1.0).abs() < 1e-12, "{token} after {history:?}: {found}, not {expected}");
        }
    }

    #[test]
    fn probabilities_add_up_to_one_and_none_is_zero(
        text in tokens(0..200), order in 0..=6_usize, history in tokens(0..8), vocabulary in 5..40_usize,
    ) {
        let model = NGram::fit(&text, vocabulary, order).unwrap();
        let all = (0..vocabulary as u32).map(|token| model.probability(&history, token));
        let all: Vec<_> = all.collect();
        prop_assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        prop_assert!(all.iter().all(|&probability| probability > 0.0));
    }

    #[test]
    fn perplexity_is_computed_from_probabilities(
        text in tokens(0..100), order in 0..=5_usize, held_out in tokens(2..60),
    ) {
        let model = NGram::fit(&text, VOCABULARY, order).unwrap();
        let surprises = (1..held_out.len()).map(|place| -model.probability(&held_out[..place], held_out[place]).ln());
        let expected = (surprises.sum::<f64>() / (held_out.len() - 1) as f64).exp();
        prop_assert!((model.perplexity(&held_out) / expected - 1.0).abs() < 1e-12);
    }
}

fn embedded() -> Arc<[u32]> {
    let text = Text::embedded().unwrap();
    text.encode(&Tokenizer::bytes()).unwrap()
}

/// A text long enough to estimate all discounts.
#[test]
fn probabilities_of_a_long_text_equal_those_of_the_definition() {
    let bytes = embedded();
    let text: Vec<u32> = bytes[..6_000].iter().map(|byte| byte % 5).collect();
    for order in [2, 3, 5] {
        let model = NGram::fit(&text, VOCABULARY, order).unwrap();
        let definition = Definition { text: &text, order };
        for history in [&[0, 1, 2, 3][..], &[4, 4, 4, 4], &text[17..21], &[2], &[]] {
            for token in 0..VOCABULARY as u32 {
                let found = model.probability(history, token);
                let expected = definition.probability(history, token);
                let case = format!("order {order}, {token} after {history:?}");
                let error = (found / expected - 1.0).abs();
                assert!(error < 1e-12, "{case}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn a_token_that_is_not_in_the_vocabulary_is_named() {
    let error = NGram::fit(&[3, 1, 7, 9], 7, 2).unwrap_err();
    assert!(matches!(error, TextError::Token { .. }));
    let expected = "token 2 of the text is 7, but the vocabulary has 7 tokens";
    assert_eq!(error.to_string(), expected);
    // Unknown tokens are allowed in perplexity.
    let model = NGram::fit(&[3, 1, 3, 1], 7, 2).unwrap();
    assert!(model.perplexity(&[3, 6, 1_000_000]).is_finite());
}

#[test]
fn perplexity_without_predictions_is_nan() {
    let model = NGram::fit(&[3, 1, 3, 1], 7, 2).unwrap();
    assert!(model.perplexity(&[]).is_nan());
    assert!(model.perplexity(&[3]).is_nan());
}

#[test]
fn the_five_gram_of_the_embedded_text() {
    let split = Split::new(embedded(), &SplitSettings::default()).unwrap();
    let perplexity = |order| {
        let model = NGram::fit(split.training.tokens(), 256, order).unwrap();
        model.perplexity(split.held_out.tokens())
    };
    assert!((perplexity(5) - 3.230).abs() < 5e-4, "{}", perplexity(5));
    // Longer histories help.
    assert!(perplexity(5) < perplexity(3) && perplexity(3) < perplexity(1));
}
