use std::array;

use crate::TextError;

/// Consecutive tokens packed into a number, the last one in the lowest bits.
type Gram = u128;

/// An n-gram model with interpolated modified Kneser–Ney smoothing, as a baseline for models that learn.
///
/// This is the model of S. F. Chen and J. Goodman, *An Empirical Study of Smoothing Techniques for Language Modeling*, 1999,
/// section 4.1, with estimated discounts. A discount that cannot be estimated, because the text is too short or too regular,
/// is half the count. The lowest order interpolates with the uniform distribution over the vocabulary, so no token has
/// probability 0. The text is one sequence without marks for sentences.
///
/// ```
/// use stovepipe_text::{NGram, Text, Tokenizer};
///
/// let tokens = Text::embedded()?.encode(&Tokenizer::bytes())?;
/// let (training, held_out) = (&tokens[..100_000], &tokens[100_000..110_000]);
/// let five_gram = NGram::fit(training, 256, 5)?;
/// let perplexity = five_gram.perplexity(held_out);
/// assert!(3.0 < perplexity && perplexity < 5.0); // 256 for the uniform distribution
///
/// let text = [0, 1, 2, 0, 1, 2, 0, 1, 2];
/// let bigram = NGram::fit(&text, 4, 2)?;
/// let after_one: Vec<f64> = (0..4).map(|token| bigram.probability(&[0, 1], token)).collect();
/// assert!((after_one.iter().sum::<f64>() - 1.0).abs() < 1e-12);
/// assert!(after_one[2] > 0.5 && after_one[3] > 0.0);
/// assert!(bigram.perplexity(&[0, 1, 2, 0]) < 2.0);
/// let nothing = NGram::fit(&[], 3, 2)?.perplexity(&[0, 1, 2, 0]);
/// assert!((nothing - 3.0).abs() < 1e-9); // uniform
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NGram {
    packing: Packing,
    vocabulary: usize,
    /// For grams of 1 token to as many as the order.
    levels: Vec<Level>,
}

/// Counts of grams of one length. Sorted lists need less memory than hash maps, and are built faster.
#[derive(Clone, Debug)]
struct Level {
    /// In ascending order.
    grams: Vec<Gram>,
    /// How often each gram occurs; for all but the longest, after how many different tokens.
    counts: Vec<u32>,
    /// For the grams without their last token, in ascending order.
    histories: Vec<History>,
    discounts: [f64; 3],
}

/// The tokens that follow a history.
#[derive(Clone, Debug)]
struct History {
    /// The index of the first gram that begins with it.
    begin: u32,
    total: u32,
    /// The number of tokens with a count of one, two, and more.
    followers: [u32; 3],
}

/// How grams are packed into numbers.
#[derive(Clone, Copy, Debug)]
struct Packing {
    bits: u32,
    /// Stands for tokens that are not in the vocabulary.
    foreign: u32,
}

impl NGram {
    /// The largest number of tokens counted. Each takes up to 200 bytes if all grams differ, and much less in a text of bytes.
    pub const MOST_TOKENS: usize = 1 << 22;

    /// Counts the grams of up to `order` tokens.
    ///
    /// Of more than [`MOST_TOKENS`](Self::MOST_TOKENS), the last ones are counted, which are next to held-out tokens. The order
    /// is reduced if the text has fewer tokens, or if so many tokens do not fit into 128 bits: 5 tokens of a vocabulary of 33
    /// million do. Order 0 is the uniform distribution.
    ///
    /// # Errors
    ///
    /// If a token is not in the vocabulary.
    pub fn fit(tokens: &[u32], vocabulary: usize, order: usize) -> Result<Self, TextError> {
        Self::fit_with(tokens, vocabulary, order, |_, counts| estimate(counts))
    }

    /// Like [`fit`](Self::fit), with discounts computed from the length of grams and their counts.
    fn fit_with(
        tokens: &[u32],
        vocabulary: usize,
        order: usize,
        discounts: impl Fn(usize, &[u32]) -> [f64; 3],
    ) -> Result<Self, TextError> {
        check_tokens(tokens, vocabulary)?;
        let packing = Packing::of(vocabulary);
        let tokens = &tokens[tokens.len().saturating_sub(Self::MOST_TOKENS)..];
        let order = order.min(tokens.len()).min(packing.longest());
        let mut levels: Vec<Level> = Vec::with_capacity(order);
        for length in (1..=order).rev() {
            let places = match levels.last() {
                None => occurrences(tokens, length, packing),
                Some(longer) => continuations(tokens, &longer.grams, length, packing),
            };
            let (grams, counts) = count(places);
            let discounts = discounts(length, &counts);
            levels.push(Level::new(grams, counts, discounts, packing));
        }
        levels.reverse();
        Ok(Self {
            packing,
            vocabulary,
            levels,
        })
    }

    /// The probability of `token` after `history`, of which the last `order − 1` tokens count.
    #[must_use]
    pub fn probability(&self, history: &[u32], token: u32) -> f64 {
        let begin = (history.len() + 1).saturating_sub(self.levels.len());
        let history = &history[begin.min(history.len())..];
        self.of_last(&[history, &[token]].concat())
    }

    /// The perplexity of `tokens`: the exponential of the mean negative log-likelihood. The first token is not predicted. It
    /// is NaN for fewer than two tokens.
    #[must_use]
    pub fn perplexity(&self, tokens: &[u32]) -> f64 {
        let longest = self.levels.len().max(1);
        let predicted = 1..tokens.len();
        let number = predicted.len() as f64;
        let begin = |last: usize| (last + 1).saturating_sub(longest);
        let surprises = predicted.map(|last| -self.of_last(&tokens[begin(last)..=last]).ln());
        (surprises.sum::<f64>() / number).exp()
    }

    /// The probability of the last token of a gram after the others. The gram must not be longer than the order.
    fn of_last(&self, gram: &[u32]) -> f64 {
        let packed = self.packing.pack(gram);
        let mut probability = 1.0 / self.vocabulary as f64;
        for (level, length) in self.levels.iter().zip(1..=gram.len()) {
            let gram = self.packing.last(packed, length);
            let Some((history, count)) = level.look_up(gram, self.packing) else {
                // Longer histories are unknown too.
                break;
            };
            probability = level.interpolate(history, count, probability);
        }
        probability
    }
}

impl Packing {
    fn of(vocabulary: usize) -> Self {
        Self {
            bits: (usize::BITS - vocabulary.leading_zeros()).max(1),
            foreign: u32::try_from(vocabulary).unwrap_or(u32::MAX),
        }
    }

    fn longest(self) -> usize {
        (Gram::BITS / self.bits) as usize
    }

    fn pack(self, tokens: &[u32]) -> Gram {
        let add =
            |gram: Gram, &token: &u32| gram << self.bits | Gram::from(token.min(self.foreign));
        tokens.iter().fold(0, add)
    }

    /// The last tokens of a gram, at least one.
    fn last(self, gram: Gram, length: usize) -> Gram {
        gram & Gram::MAX >> (Gram::BITS - self.bits * length as u32)
    }

    fn without_last(self, gram: Gram) -> Gram {
        gram.checked_shr(self.bits).unwrap_or(0)
    }
}

impl Level {
    fn new(grams: Vec<Gram>, counts: Vec<u32>, discounts: [f64; 3], packing: Packing) -> Self {
        let mut histories = Vec::new();
        let mut begin = 0;
        let same = |&a: &Gram, &b: &Gram| packing.without_last(a) == packing.without_last(b);
        for following in grams.chunk_by(same) {
            let end = begin + following.len();
            histories.push(History::new(begin, &counts[begin..end]));
            begin = end;
        }
        Self {
            grams,
            counts,
            histories,
            discounts,
        }
    }

    /// The history of a gram, and the gram's count.
    fn look_up(&self, gram: Gram, packing: Packing) -> Option<(&History, u32)> {
        let key = packing.without_last(gram);
        let tokens = |history: &History| packing.without_last(self.grams[history.begin as usize]);
        let place = self.histories.binary_search_by_key(&key, tokens).ok()?;
        let history = &self.histories[place];
        let begin = history.begin as usize;
        let next = self.histories.get(place + 1);
        let end = next.map_or(self.grams.len(), |next| next.begin as usize);
        let place = self.grams[begin..end].binary_search(&gram);
        Some((history, place.map_or(0, |place| self.counts[begin + place])))
    }

    /// The probability of a token with this count after a history, given its probability after the shorter history.
    fn interpolate(&self, history: &History, count: u32, shorter: f64) -> f64 {
        let discounted = (f64::from(count) - self.discounts[class(count)]).max(0.0);
        let own = if count == 0 { 0.0 } else { discounted };
        let freed = self.discounts.iter().zip(history.followers);
        let freed: f64 = freed.map(|(each, tokens)| each * f64::from(tokens)).sum();
        (own + freed * shorter) / f64::from(history.total)
    }
}

impl History {
    /// The history of grams from index `begin` on, with these counts.
    fn new(begin: usize, counts: &[u32]) -> Self {
        let mut followers = [0; 3];
        for &count in counts {
            followers[class(count)] += 1;
        }
        Self {
            begin: begin as u32,
            total: counts.iter().sum(),
            followers,
        }
    }
}

/// The index of a count's discount: for one, two, or more.
fn class(count: u32) -> usize {
    count.clamp(1, 3) as usize - 1
}

fn check_tokens(tokens: &[u32], vocabulary: usize) -> Result<(), TextError> {
    let mut places = tokens.iter().zip(0..);
    match places.find(|&(&token, _)| token as usize >= vocabulary) {
        None => Ok(()),
        Some((&token, place)) => Err(TextError::Token {
            token,
            place,
            vocabulary,
        }),
    }
}

/// Each gram of `length` tokens, as often as it occurs.
fn occurrences(tokens: &[u32], length: usize, packing: Packing) -> Vec<Gram> {
    let grams = tokens.windows(length);
    grams.map(|gram| packing.pack(gram)).collect()
}

/// Each gram of `length` tokens, as often as it is the end of one of the distinct longer grams.
fn continuations(tokens: &[u32], longer: &[Gram], length: usize, packing: Packing) -> Vec<Gram> {
    // No token precedes the first gram, so it is added if no longer gram ends with it elsewhere.
    let first = packing.pack(&tokens[..=length]);
    let first = longer.binary_search(&first).is_err().then_some(first);
    let grams = longer.iter().copied().chain(first);
    grams.map(|gram| packing.last(gram, length)).collect()
}

/// The distinct grams in ascending order, with their counts.
fn count(mut grams: Vec<Gram>) -> (Vec<Gram>, Vec<u32>) {
    grams.sort_unstable();
    let runs = grams.chunk_by(|a, b| a == b);
    let counts = runs.map(|run| run.len() as u32).collect();
    grams.dedup();
    grams.shrink_to_fit();
    (grams, counts)
}

/// The discounts of counts of one, two and more.
///
/// With nᵢ grams of count i and Y = n₁ / (n₁ + 2 n₂), the discount is i − (i + 1) Y nᵢ₊₁ / nᵢ.
fn estimate(counts: &[u32]) -> [f64; 3] {
    let mut grams = [0.0; 4];
    for &count in counts {
        if let Some(grams) = grams.get_mut(count as usize - 1) {
            *grams += 1.0;
        }
    }
    let known = grams.iter().all(|&grams| grams > 0.0);
    let share = grams[0] / (grams[0] + 2.0 * grams[1]);
    array::from_fn(|place| {
        let count = place as f64 + 1.0;
        let discount = count - (count + 1.0) * share * grams[place + 1] / grams[place];
        let usable = Some(discount).filter(|&discount| known && discount > 0.0);
        usable.unwrap_or(count / 2.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From NLTK, which has one discount and no uniform distribution; `tests/n_gram/make.py` made the file.
    #[test]
    fn probabilities_equal_those_of_nltk() {
        let mut lines = include_str!("../tests/n_gram/nltk.txt").lines();
        let tokens = |letters: &str| -> Vec<u32> { letters.chars().map(u32::from).collect() };
        let text = tokens(lines.next().unwrap());
        let discounts = |length, _: &[u32]| [if length == 1 { 0.0 } else { 0.75 }; 3];
        let model = NGram::fit_with(&text, 256, 3, discounts).unwrap();
        let mut compared = 0;
        for line in lines {
            let fields: Vec<_> = line.split(' ').collect();
            let [history, token, expected] = fields.try_into().unwrap();
            let history = tokens(history.trim_matches('-'));
            let expected: f64 = expected.parse().unwrap();
            let found = model.probability(&history, tokens(token)[0]);
            assert!((found - expected).abs() < 1e-12, "{line}: {found}");
            compared += 1;
        }
        assert_eq!(compared, 5 + 25 + 125);
    }

    #[test]
    fn the_last_tokens_of_a_long_text_are_counted() {
        let mut text = vec![0; 10];
        text.resize(NGram::MOST_TOKENS + 10, 1);
        let model = NGram::fit(&text, 2, 1).unwrap();
        let level = &model.levels[0];
        assert_eq!(level.grams, [1]);
        assert_eq!(level.counts, [NGram::MOST_TOKENS as u32]);
    }

    #[test]
    fn a_large_vocabulary_reduces_the_order() {
        let text = [0, 1, 2, 0, 1, 2, 0, 1];
        let order = |vocabulary| NGram::fit(&text, vocabulary, 7).unwrap().levels.len();
        assert_eq!(order(1 << 17), 7);
        assert_eq!(order((1 << 25) - 1), 5);
        assert_eq!(order(1 << 25), 4);
        assert_eq!(order(usize::MAX), 2);
        // A gram that takes all bits.
        let of = |vocabulary: usize| NGram::fit(&text, vocabulary, 4).unwrap();
        for (full, usual) in [(of(1 << 31), of(1 << 20)), (of((1 << 32) - 1), of(1 << 20))] {
            let difference = full.probability(&[0, 1], 2) - usual.probability(&[0, 1], 2);
            assert!(difference.abs() < 1e-5);
            assert!(full.probability(&[0, 1, 7, 8], u32::MAX) > 0.0);
        }
    }
}
