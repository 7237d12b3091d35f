use std::{array, collections::HashMap};

use crate::TextError;

/// A few tokens in a row, where they stand in the text.
type Gram<'a> = &'a [u32];

/// An n-gram model with interpolated modified Kneser–Ney smoothing: what counting gets to, without any learning.
///
/// A token's probability is the share of the places with the same last `order − 1` tokens in which it followed, less a
/// discount if that was once, twice, or more often. What the discounts free is given out as the history without its
/// first token says, and so on down to no history at all and then the even share of each token of the vocabulary: none
/// is impossible. Shorter histories count not how often a token followed, but after how many different tokens that did.
/// This is the model of S. F. Chen and J. Goodman, *An Empirical Study of Smoothing Techniques for Language Modeling*,
/// 1999, section 4.1, with the discounts that it estimates; where a text is too short or too regular to estimate one,
/// it is half the count. The text is one sequence: neither its ends nor its sentences are marked.
///
/// # Example
///
/// ```
/// use stovepipe_text::{NGram, Text, Tokenizer};
///
/// let tokens = Text::embedded()?.encode(&Tokenizer::bytes())?;
/// let (training, held_out) = (&tokens[..100_000], &tokens[100_000..110_000]);
/// let five_gram = NGram::fit(training, 256, 5)?;
/// let perplexity = five_gram.perplexity(held_out);
/// assert!(3.0 < perplexity && perplexity < 5.0); // if all bytes were alike, it would be 256
/// # Ok::<(), stovepipe_text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NGram<'a> {
    vocabulary: usize,
    /// Single tokens first, grams as long as the order last.
    levels: Vec<Level<'a>>,
}

/// What was counted of grams of one length.
#[derive(Clone, Debug)]
struct Level<'a> {
    /// How often each gram occurs or, but for the longest, after how many different tokens.
    counts: HashMap<Gram<'a>, u32>,
    /// By the grams without their last token.
    histories: HashMap<Gram<'a>, History>,
    discounts: [f64; 3],
}

/// What followed a history.
#[derive(Clone, Debug, Default)]
struct History {
    /// The sum of their counts.
    total: u64,
    /// How many tokens have a count of one, of two, and more.
    followers: [u32; 3],
}

impl<'a> NGram<'a> {
    /// How many tokens are counted at most: enough for some hundred megabytes of memory.
    pub const MOST_TOKENS: usize = 1 << 22;

    /// Counts the grams of up to `order` tokens in `tokens`, of a vocabulary of `vocabulary` tokens.
    ///
    /// If there are more than [`MOST_TOKENS`](Self::MOST_TOKENS), the last ones are counted: they are next to what was
    /// held out. A text of fewer tokens than `order` lowers it; of order 0 is the model that has all tokens alike.
    ///
    /// # Errors
    ///
    /// If a token is not in the vocabulary.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::NGram;
    ///
    /// let text: Vec<u32> = b"the cat sat on the mat".iter().copied().map(u32::from).collect();
    /// assert!(NGram::fit(&text, 256, 5).is_ok());
    /// let error = NGram::fit(&text, 100, 5).unwrap_err();
    /// assert_eq!(error.to_string(), "token 0 of the text is 116, but the vocabulary has 100 tokens");
    /// ```
    pub fn fit(tokens: &'a [u32], vocabulary: usize, order: usize) -> Result<Self, TextError> {
        Self::fit_with(tokens, vocabulary, order, |_, counts| estimate(counts))
    }

    /// [`fit`](Self::fit) with discounts from the length of grams and their counts.
    fn fit_with(
        tokens: &'a [u32],
        vocabulary: usize,
        order: usize,
        discounts: impl Fn(usize, &HashMap<Gram<'a>, u32>) -> [f64; 3],
    ) -> Result<Self, TextError> {
        check_tokens(tokens, vocabulary)?;
        let tokens = &tokens[tokens.len().saturating_sub(Self::MOST_TOKENS)..];
        let order = order.min(tokens.len());
        let mut levels: Vec<Level<'a>> = Vec::with_capacity(order);
        for length in (1..=order).rev() {
            let counts = match levels.last() {
                None => occurrences(tokens, length),
                Some(longer) => continuations(tokens, &longer.counts, length),
            };
            levels.push(Level::new(discounts(length, &counts), counts));
        }
        levels.reverse();
        Ok(Self { vocabulary, levels })
    }

    /// The probability that `token` comes after `history`, of which the last `order − 1` tokens count.
    ///
    /// Those of all tokens of the vocabulary add up to 1.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::NGram;
    ///
    /// let text = [0, 1, 2, 0, 1, 2, 0, 1, 2];
    /// let bigram = NGram::fit(&text, 4, 2)?;
    /// let after_one: Vec<f64> = (0..4).map(|token| bigram.probability(&[0, 1], token)).collect();
    /// assert!((after_one.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    /// assert!(after_one[2] > 0.5 && after_one[3] > 0.0);
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn probability(&self, history: &[u32], token: u32) -> f64 {
        let begin = (history.len() + 1).saturating_sub(self.levels.len());
        let gram: Vec<u32> = history[begin.min(history.len())..]
            .iter()
            .copied()
            .chain([token])
            .collect();
        self.of_last(&gram)
    }

    /// The perplexity of `tokens`, each but the first predicted from up to `order − 1` before it: the exponential of the
    /// mean of −ln of its probability, as a language model's is of its mean loss. It is NaN if there are fewer than two.
    ///
    /// # Example
    ///
    /// ```
    /// use stovepipe_text::NGram;
    ///
    /// let text = [0, 1, 2, 0, 1, 2, 0, 1, 2];
    /// assert!(NGram::fit(&text, 3, 2)?.perplexity(&[0, 1, 2, 0]) < 2.0);
    /// let nothing = NGram::fit(&[], 3, 2)?.perplexity(&[0, 1, 2, 0]);
    /// assert!((nothing - 3.0).abs() < 1e-9); // all tokens alike
    /// # Ok::<(), stovepipe_text::TextError>(())
    /// ```
    #[must_use]
    pub fn perplexity(&self, tokens: &[u32]) -> f64 {
        let longest = self.levels.len().max(1);
        let predicted = 1..tokens.len();
        let number = predicted.len() as f64;
        let begin = |last: usize| (last + 1).saturating_sub(longest);
        let surprises = predicted.map(|last| -self.of_last(&tokens[begin(last)..=last]).ln());
        (surprises.sum::<f64>() / number).exp()
    }

    /// The probability of the last token of a gram, no longer than the order, after the others.
    fn of_last(&self, gram: &[u32]) -> f64 {
        let mut probability = 1.0 / self.vocabulary as f64;
        for (level, length) in self.levels.iter().zip(1..=gram.len()) {
            let gram = &gram[gram.len() - length..];
            let Some(history) = level.histories.get(&gram[..length - 1]) else {
                // Nor is a longer one known.
                break;
            };
            probability = level.interpolate(history, gram, probability);
        }
        probability
    }
}

impl<'a> Level<'a> {
    fn new(discounts: [f64; 3], counts: HashMap<Gram<'a>, u32>) -> Self {
        let mut histories: HashMap<Gram<'a>, History> = HashMap::new();
        for (gram, &count) in &counts {
            let history = histories.entry(&gram[..gram.len() - 1]).or_default();
            history.total += u64::from(count);
            history.followers[class(count)] += 1;
        }
        Self {
            counts,
            histories,
            discounts,
        }
    }

    /// The probability of a gram's last token after its others, when it is `shorter` after all but the first of them.
    fn interpolate(&self, history: &History, gram: &[u32], shorter: f64) -> f64 {
        let count = self.counts.get(gram).copied().unwrap_or(0);
        let own = match count {
            0 => 0.0,
            count => (f64::from(count) - self.discounts[class(count)]).max(0.0),
        };
        let freed = self.discounts.iter().zip(history.followers);
        let freed: f64 = freed.map(|(each, tokens)| each * f64::from(tokens)).sum();
        (own + freed * shorter) / history.total as f64
    }
}

/// Which discount a count has: that of one, of two, or of more.
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

/// How often each gram of `length` tokens occurs.
fn occurrences(tokens: &[u32], length: usize) -> HashMap<Gram<'_>, u32> {
    let mut counts = HashMap::new();
    for gram in tokens.windows(length) {
        *counts.entry(gram).or_default() += 1;
    }
    counts
}

/// After how many different tokens each gram of `length` tokens occurs, from what was counted of grams longer by one.
fn continuations<'a>(
    tokens: &'a [u32],
    longer: &HashMap<Gram<'a>, u32>,
    length: usize,
) -> HashMap<Gram<'a>, u32> {
    // The text's first gram comes after no token, so it may have no count, but it is one.
    let first = &tokens[..=length];
    let first = (!longer.contains_key(first)).then_some(first);
    let mut counts = HashMap::new();
    for gram in longer.keys().copied().chain(first) {
        *counts.entry(&gram[1..]).or_default() += 1;
    }
    counts
}

/// The discounts of counts of one, two and more, from how many grams have each count up to four.
///
/// With nᵢ the number of grams with count i, and Y = n₁ / (n₁ + 2 n₂), it is i − (i + 1) Y nᵢ₊₁ / nᵢ.
fn estimate(counts: &HashMap<Gram<'_>, u32>) -> [f64; 3] {
    let mut grams = [0.0; 4];
    for &count in counts.values() {
        if let Some(grams) = grams.get_mut(count as usize - 1) {
            *grams += 1.0;
        }
    }
    let known = grams.iter().all(|&grams| grams > 0.0);
    let share = grams[0] / (grams[0] + 2.0 * grams[1]);
    array::from_fn(|place| {
        let count = place as f64 + 1.0;
        let discount = count - (count + 1.0) * share * grams[place + 1] / grams[place];
        match known && discount > 0.0 {
            true => discount,
            false => count / 2.0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same model by NLTK, which has one discount and no even share; `tests/n_gram/make.py` made the file.
    #[test]
    fn probabilities_are_those_of_nltk() {
        let mut lines = include_str!("../tests/n_gram/nltk.txt").lines();
        let tokens = |letters: &str| -> Vec<u32> { letters.chars().map(u32::from).collect() };
        let text = tokens(lines.next().unwrap());
        let discounts = |length, _: &HashMap<_, _>| match length {
            1 => [0.0; 3],
            _ => [0.75; 3],
        };
        let model = NGram::fit_with(&text, 256, 3, discounts).unwrap();
        let mut compared = 0;
        for line in lines {
            let fields: Vec<_> = line.split(' ').collect();
            let [history, token, expected] = fields[..] else {
                panic!("{line}");
            };
            let history = tokens(history.trim_matches('-'));
            let expected: f64 = expected.parse().unwrap();
            let found = model.probability(&history, tokens(token)[0]);
            assert!((found - expected).abs() < 1e-12, "{line}: {found}");
            compared += 1;
        }
        assert_eq!(compared, 5 + 25 + 125);
    }

    #[test]
    fn of_a_long_text_the_last_tokens_are_counted() {
        let mut text = vec![0; 10];
        text.resize(NGram::MOST_TOKENS + 10, 1);
        let model = NGram::fit(&text, 2, 1).unwrap();
        let counted: u32 = model.levels[0].counts.values().sum();
        assert_eq!(counted as usize, NGram::MOST_TOKENS);
        assert!(!model.levels[0].counts.contains_key(&[0][..]));
    }
}
