//! Random models, cut and scheduled at random.

use proptest::prelude::*;
use stovepipe_pipeline::CrossEntropy;
use stovepipe_verify::Verifier;

use crate::palette::*;

const WIDTH: usize = 5;

/// The layer of a number.
fn part(kind: u8) -> Part {
    match kind % 7 {
        0 => Part::Linear(linear(WIDTH, WIDTH)),
        1 => Part::Four(linear(WIDTH, WIDTH)),
        2 => noisy(WIDTH),
        3 => head(WIDTH, WIDTH),
        4 => normed(WIDTH, WIDTH),
        _ => skip(WIDTH, ""), // wired later
    }
}

/// Wires the skip layers: each sends a value to some of those after it.
fn wire(layers: &mut [Part], choices: &[u16]) {
    let places: Vec<_> = (layers.iter().enumerate())
        .filter(|(_, part)| matches!(part, Part::Skip(_)))
        .map(|(place, _)| place)
        .collect();
    let mut uses = vec![String::new(); layers.len()];
    for (index, &sender) in places.iter().enumerate() {
        let choice = choices[index % choices.len()];
        let takers = places[index + 1..].iter().enumerate();
        let takers = takers.filter(|(bit, _)| choice >> (bit % 16) & 1 == 1);
        let takers: Vec<_> = takers.map(|(_, &taker)| taker).collect();
        if !takers.is_empty() {
            uses[sender] += &format!(" +s{sender}");
            (takers.into_iter()).for_each(|taker| uses[taker] += &format!(" -s{sender}"));
        }
    }
    for (layer, uses) in layers.iter_mut().zip(&uses) {
        if matches!(layer, Part::Skip(_)) {
            *layer = skip(WIDTH, uses);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn no_random_model_shows_how_it_was_cut(
        kinds in prop::collection::vec(any::<u8>(), 2..9),
        choices in prop::collection::vec(any::<u16>(), 8),
        samples in 1..9_usize,
        micro_batches in 1..6_usize,
        stages in 2..9_usize,
        seed in any::<u64>(),
    ) {
        let mut layers: Vec<_> = kinds.iter().map(|&kind| part(kind)).collect();
        wire(&mut layers, &choices);
        let stages = stages.min(layers.len());
        let batch = vectors(samples, WIDTH, WIDTH);
        let verifier = Verifier::new(layers, batch, CrossEntropy::new()).stages([stages]);
        let report = verifier.micro_batches([micro_batches]).seed(seed).run().unwrap();
        prop_assert!(report.holds(), "{kinds:?}, {choices:?}\n{report}");
    }
}
