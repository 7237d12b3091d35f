//! Windows and batches: what a model reads, and what it has to predict.

use burn::{
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::Dataset,
    },
    tensor::{Device, Int, Tensor},
};
use proptest::prelude::*;
use stovepipe_text::{
    PADDING, Split, SplitSettings, Text, TextBatcher, TextError, Tokenizer, Window, Windows,
};

fn rows(tensor: Tensor<2, Int>) -> Vec<Vec<i64>> {
    let [_, length] = tensor.dims();
    let values: Vec<_> = tensor.into_data().iter::<i64>().collect();
    values.chunks(length).map(<[_]>::to_vec).collect()
}

/// The inputs and targets of windows.
fn batch(batcher: TextBatcher, windows: Vec<Window>) -> Vec<(Vec<i64>, Vec<i64>)> {
    let (inputs, targets) = batcher.batch(windows, &Device::default());
    assert_eq!(inputs.dims(), targets.dims());
    rows(inputs).into_iter().zip(rows(targets)).collect()
}

fn all(windows: &Windows) -> Vec<Window> {
    let indices = (0..windows.len()).collect();
    windows.get_many(indices).unwrap()
}

/// Tokens that are their own places, so that rows tell where they are from.
fn places(tokens: usize) -> Vec<u32> {
    (100..100 + tokens as u32).collect()
}

const PAD: i64 = PADDING as i64;

#[test]
fn windows_by_hand() {
    let plain = TextBatcher::default();
    let windows = Windows::new(places(8), 3).unwrap();
    let expected = [
        (vec![100, 101, 102], vec![101, 102, 103]),
        (vec![103, 104, 105], vec![104, 105, 106]),
        (vec![106, 0, 0], vec![107, PAD, PAD]),
    ];
    assert_eq!(batch(plain, all(&windows)), expected);
    let overlapping = Windows::new(places(9), 4).unwrap().overlapping();
    let expected = [
        (vec![100, 101, 102, 103], vec![101, 102, 103, 104]),
        (vec![102, 103, 104, 105], vec![PAD, PAD, 105, 106]),
        (vec![104, 105, 106, 107], vec![PAD, PAD, 107, 108]),
    ];
    assert_eq!(batch(plain, all(&overlapping)), expected);
}

/// What a cut must keep, whatever is shifted or overlaps.
fn check(windows: &Windows, batcher: TextBatcher) -> Result<(), TestCaseError> {
    let (tokens, length) = (windows.tokens().len(), windows.length());
    let rows = batch(batcher, all(windows));
    prop_assert_eq!(rows.len(), windows.len());
    let mut predicted = Vec::new();
    for (inputs, targets) in &rows {
        prop_assert_eq!((inputs.len(), targets.len()), (length, length));
        prop_assert!(targets.iter().any(|&target| target != PAD));
        for (place, (&input, &target)) in inputs.iter().zip(targets).enumerate() {
            prop_assert!(target == PAD || target == input + 1);
            // Inputs follow each other, up to the padding, except once in a shifted text.
            let next = inputs.get(place + 1).copied().unwrap_or(0);
            prop_assert!(next == 0 || next == input + 1 || next == 100);
        }
        predicted.extend(targets.iter().copied().filter(|&target| target != PAD));
    }
    predicted.sort_unstable();
    prop_assert!(
        predicted.into_iter().eq(101..100 + tokens as i64),
        "a target is missing or there twice"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_token_but_the_first_is_a_target_once(
        length in 1..20_usize, more in 1..100_usize, seed in any::<u64>(), epoch in 0..1000_usize,
    ) {
        let windows = Windows::new(places(length + more), length).unwrap();
        prop_assert_eq!(windows.targets(), length + more - 1);
        for windows in [&windows, &windows.overlapping()] {
            check(windows, TextBatcher::default())?;
            check(windows, TextBatcher::shifted(seed, epoch))?;
        }
    }

    /// Of an overlapping window, all but the first have half a window or more to be read before the first target.
    #[test]
    fn overlapping_windows_have_half_a_window_before_their_targets(length in 1..20_usize, more in 1..100_usize) {
        let windows = Windows::new(places(length + more), length).unwrap().overlapping();
        for (inputs, targets) in batch(TextBatcher::default(), all(&windows)).iter().skip(1) {
            let read_only = targets.iter().position(|&target| target != PAD);
            prop_assert_eq!(read_only, Some(length / 2));
            prop_assert!(inputs[..length / 2].iter().all(|&input| input >= 100));
        }
    }

    #[test]
    fn parts_are_the_text_cut_once(tokens in 20..400_usize, share in 0.05..0.95, length in 1..4_usize) {
        let settings = SplitSettings { length, held_out: share };
        let held_out = (tokens as f64 * share).round() as usize;
        let split = Split::new(places(tokens), &settings);
        prop_assert_eq!(split.is_ok(), held_out > length && tokens - held_out > length);
        if let Ok(split) = split {
            prop_assert_eq!(split.held_out.tokens().len(), held_out);
            prop_assert_eq!([split.training.tokens(), split.held_out.tokens()].concat(), places(tokens));
            let rows = batch(TextBatcher::default(), all(&split.training));
            prop_assert!(rows.concat_inputs().all(|input| input < 100 + (tokens - held_out) as i64));
        }
    }
}

trait Inputs {
    fn concat_inputs(&self) -> impl Iterator<Item = i64>;
}

impl Inputs for Vec<(Vec<i64>, Vec<i64>)> {
    fn concat_inputs(&self) -> impl Iterator<Item = i64> {
        self.iter().flat_map(|(inputs, _)| inputs.iter().copied())
    }
}

#[test]
fn a_shift_is_fixed_by_seed_and_epoch_and_nothing_else() {
    let windows = Windows::new(places(1_000), 16).unwrap();
    let first = |seed, epoch, indices: Vec<usize>| {
        let items = windows.get_many(indices).unwrap();
        batch(TextBatcher::shifted(seed, epoch), items).remove(0).0[0]
    };
    assert_eq!(first(7, 3, vec![0]), first(7, 3, vec![0]));
    // The batch does not count: the same window is the same in any.
    assert_eq!(first(7, 3, vec![5]), first(7, 3, vec![5, 9, 0]));
    let begins: Vec<_> = (0..20).map(|epoch| first(7, epoch, vec![0])).collect();
    assert!(begins.iter().any(|begin| begin % 16 != begins[0] % 16));
    assert!(begins.windows(2).all(|pair| pair[0] != pair[1]));
    let other: Vec<_> = (0..20).map(|epoch| first(8, epoch, vec![0])).collect();
    assert_ne!(begins, other);
}

#[test]
fn after_the_last_pair_comes_the_first() {
    let windows = Windows::new(places(11), 5).unwrap();
    let mut seen = [false; 10];
    for epoch in 0..200 {
        let rows = batch(TextBatcher::shifted(1, epoch), all(&windows));
        let begin = (rows[0].0[0] - 100) as usize;
        seen[begin] = true;
        let ring = |place: usize| 100 + ((begin + place) % 10) as i64;
        let inputs: Vec<_> = rows.concat_inputs().collect();
        assert!(inputs.into_iter().eq((0..10).map(ring)));
    }
    assert_eq!(seen, [true; 10]);
}

#[test]
fn settings_out_of_range_and_texts_too_short_are_errors() {
    let check = |tokens, length, held_out, expected: &str| {
        let settings = SplitSettings { length, held_out };
        let error = Split::new(places(tokens), &settings).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(100, 0, 0.1, "length is 0, but must be at least 1");
    check(
        100,
        8,
        0.0,
        "held-out is 0, but must be greater than 0 and less than 1",
    );
    check(
        100,
        8,
        1.0,
        "held-out is 1, but must be greater than 0 and less than 1",
    );
    check(
        100,
        8,
        -0.5,
        "held-out is -0.5, but must be greater than 0 and less than 1",
    );
    check(
        100,
        8,
        f64::NAN,
        "held-out is NaN, but must be greater than 0 and less than 1",
    );
    check(
        80,
        8,
        0.1,
        "the held-out part has 8 tokens, but a window of 8 and its targets need 9: take more text or shorter windows",
    );
    check(
        10,
        8,
        0.9,
        "the training part has 1 tokens, but a window of 8 and its targets need 9: take more text or shorter windows",
    );
    check(
        0,
        8,
        0.1,
        "the training part has 0 tokens, but a window of 8 and its targets need 9: take more text or shorter windows",
    );
    assert!(
        Split::new(
            places(90),
            &SplitSettings {
                length: 8,
                held_out: 0.1
            }
        )
        .is_ok()
    );
    for tokens in [0, 1, 8] {
        let error = Windows::new(places(tokens), 8).unwrap_err();
        assert!(matches!(error, TextError::TooShort { part: "text", .. }));
    }
    assert_eq!(Windows::new(places(9), 8).unwrap().len(), 1);
    // A window longer than any memory is only too long.
    assert!(Windows::new(places(9), usize::MAX - 1).is_err());
}

#[test]
#[should_panic(expected = "window 3 of 3 is out of bounds")]
fn get_beyond_the_end_panics_as_the_trait_says() {
    let _ = Windows::new(places(8), 3).unwrap().get(3);
}

#[test]
fn windows_print_without_their_tokens() {
    let windows = Windows::new(places(8), 3).unwrap();
    let expected = "Windows { tokens: 8, length: 3, windows: 3, .. }";
    assert_eq!(format!("{windows:?}"), expected);
    let window = format!("{:?}", windows.get(2).unwrap());
    assert_eq!(window, "Window { index: 2, .. }");
}

#[test]
fn no_windows_are_an_empty_batch() {
    let (inputs, targets) = TextBatcher::default().batch(vec![], &Device::default());
    assert_eq!((inputs.dims(), targets.dims()), ([0, 0], [0, 0]));
}

/// A loader of Burn's with workers shows what was read.
#[test]
fn a_loader_shows_the_embedded_text() {
    let bytes = Tokenizer::bytes();
    let tokens = Text::embedded().unwrap().encode(&bytes).unwrap();
    let held_out = Windows::new(tokens[..1_000].to_vec(), 64).unwrap();
    let loader = DataLoaderBuilder::new(TextBatcher::default())
        .batch_size(6)
        .build(held_out);
    let inputs = loader.iter().flat_map(|batch| rows(batch.unwrap().0));
    let inputs: Vec<u32> = inputs.flatten().map(|token| token as u32).collect();
    assert_eq!(inputs[..999], tokens[..999]);
    let shown = bytes.decode(&inputs[..70]).unwrap();
    let expected = "Genesis\n\n1:1 In the beginning God created the heavens and the earth.\n1";
    assert_eq!(shown, expected);
}
