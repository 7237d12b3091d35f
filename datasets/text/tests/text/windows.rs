//! Windows and batches: inputs and targets.

use burn::{
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::Dataset,
    },
    tensor::{Device, Int, Tensor},
};
use proptest::prelude::*;
use stovepipe_text::{
    PADDING, Split, SplitSettings, Text, TextBatcher, TextError, TokenWindow, TokenWindows,
    Tokenizer,
};

fn rows(tensor: Tensor<2, Int>) -> Vec<Vec<i64>> {
    let [_, length] = tensor.dims();
    let values: Vec<_> = tensor.into_data().iter::<i64>().collect();
    values.chunks(length).map(<[_]>::to_vec).collect()
}

fn batch(batcher: TextBatcher, windows: Vec<TokenWindow>) -> Vec<(Vec<i64>, Vec<i64>)> {
    let (inputs, targets) = batcher.batch(windows, &Device::default());
    assert_eq!(inputs.dims(), targets.dims());
    rows(inputs).into_iter().zip(rows(targets)).collect()
}

fn all(windows: &TokenWindows) -> Vec<TokenWindow> {
    let indices = (0..windows.len()).collect();
    windows.get_many(indices).unwrap()
}

/// Tokens that tell their index.
fn places(tokens: usize) -> Vec<u32> {
    (100..100 + tokens as u32).collect()
}

const PAD: i64 = PADDING as i64;

#[test]
fn inputs_and_targets_of_windows() {
    let plain = TextBatcher::default();
    let windows = TokenWindows::new(places(8), 3).unwrap();
    let expected = [
        (vec![100, 101, 102], vec![101, 102, 103]),
        (vec![103, 104, 105], vec![104, 105, 106]),
        (vec![106, 0, 0], vec![107, PAD, PAD]),
    ];
    assert_eq!(batch(plain, all(&windows)), expected);
    let overlapping = TokenWindows::new(places(9), 4).unwrap().overlapping();
    let expected = [
        (vec![100, 101, 102, 103], vec![101, 102, 103, 104]),
        (vec![102, 103, 104, 105], vec![PAD, PAD, 105, 106]),
        (vec![104, 105, 106, 107], vec![PAD, PAD, 107, 108]),
    ];
    assert_eq!(batch(plain, all(&overlapping)), expected);
}

/// Checks what holds for all windows, also shifted and overlapping.
fn check(windows: &TokenWindows, batcher: TextBatcher) -> Result<(), TestCaseError> {
    let (tokens, length) = (windows.tokens().len(), windows.length());
    let rows = batch(batcher, all(windows));
    prop_assert_eq!(rows.len(), windows.len());
    let mut predicted = Vec::new();
    for (inputs, targets) in &rows {
        prop_assert_eq!((inputs.len(), targets.len()), (length, length));
        prop_assert!(targets.iter().any(|&target| target != PAD));
        for (place, (&input, &target)) in inputs.iter().zip(targets).enumerate() {
            prop_assert!(target == PAD || target == input + 1);
            // Inputs are consecutive up to the padding, except once in a shifted text.
            let next = inputs.get(place + 1).copied().unwrap_or(0);
            prop_assert!(next == 0 || next == input + 1 || next == 100);
        }
        predicted.extend(targets.iter().copied().filter(|&target| target != PAD));
    }
    predicted.sort_unstable();
    let is_once = predicted.into_iter().eq(101..100 + tokens as i64);
    prop_assert!(is_once, "a target is missing or duplicate");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_token_but_the_first_is_a_target_once(
        length in 1..20_usize, more in 1..100_usize, seed in any::<u64>(), epoch in 0..1000_usize,
    ) {
        let windows = TokenWindows::new(places(length + more), length).unwrap();
        prop_assert_eq!(windows.targets(), length + more - 1);
        for windows in [&windows, &windows.overlapping()] {
            check(windows, TextBatcher::default())?;
            check(windows, TextBatcher::shifted(seed, epoch))?;
        }
    }

    #[test]
    fn overlapping_windows_have_half_a_window_before_their_targets(length in 1..20_usize, more in 1..100_usize) {
        let windows = TokenWindows::new(places(length + more), length).unwrap().overlapping();
        for (inputs, targets) in batch(TextBatcher::default(), all(&windows)).iter().skip(1) {
            let overlap = targets.iter().position(|&target| target != PAD);
            prop_assert_eq!(overlap, Some(length / 2));
            prop_assert!(inputs[..length / 2].iter().all(|&input| input >= 100));
        }
    }

    #[test]
    fn parts_are_the_text_split_once(tokens in 20..400_usize, share in 0.05..0.95, length in 1..4_usize) {
        let settings = SplitSettings { length, held_out: share };
        let held_out = (tokens as f64 * share).round() as usize;
        let split = Split::new(places(tokens), &settings);
        prop_assert_eq!(split.is_ok(), held_out > length && tokens - held_out > length);
        if let Ok(split) = split {
            prop_assert_eq!(split.held_out.tokens().len(), held_out);
            prop_assert_eq!([split.training.tokens(), split.held_out.tokens()].concat(), places(tokens));
            let rows = batch(TextBatcher::default(), all(&split.training));
            prop_assert!(all_inputs(&rows).all(|input| input < 100 + (tokens - held_out) as i64));
        }
    }
}

fn all_inputs(rows: &[(Vec<i64>, Vec<i64>)]) -> impl Iterator<Item = i64> {
    rows.iter().flat_map(|(inputs, _)| inputs.iter().copied())
}

#[test]
fn an_offset_depends_only_on_seed_and_epoch() {
    let windows = TokenWindows::new(places(1_000), 16).unwrap();
    let first = |seed, epoch, indices: Vec<usize>| {
        let items = windows.get_many(indices).unwrap();
        batch(TextBatcher::shifted(seed, epoch), items).remove(0).0[0]
    };
    assert_eq!(first(7, 3, vec![0]), first(7, 3, vec![0]));
    // The other windows of the batch do not matter.
    assert_eq!(first(7, 3, vec![5]), first(7, 3, vec![5, 9, 0]));
    let begins: Vec<_> = (0..20).map(|epoch| first(7, epoch, vec![0])).collect();
    assert!(begins.iter().any(|begin| begin % 16 != begins[0] % 16));
    assert!(begins.windows(2).all(|pair| pair[0] != pair[1]));
    let other: Vec<_> = (0..20).map(|epoch| first(8, epoch, vec![0])).collect();
    assert_ne!(begins, other);
}

#[test]
fn a_shifted_text_wraps_around() {
    let windows = TokenWindows::new(places(11), 5).unwrap();
    let mut seen = [false; 10];
    for epoch in 0..200 {
        let rows = batch(TextBatcher::shifted(1, epoch), all(&windows));
        let begin = (rows[0].0[0] - 100) as usize;
        seen[begin] = true;
        let ring = |place: usize| 100 + ((begin + place) % 10) as i64;
        assert!(all_inputs(&rows).eq((0..10).map(ring)));
    }
    assert_eq!(seen, [true; 10]);
}

#[test]
fn settings_out_of_range_and_short_texts_are_errors() {
    let split =
        |tokens, length, held_out| Split::new(places(tokens), &SplitSettings { length, held_out });
    let error = split(100, 0, 0.1).unwrap_err().to_string();
    assert_eq!(error, "length is 0, but must be at least 1");
    for held_out in [0.0, 1.0, -0.5, f64::NAN] {
        let error = split(100, 8, held_out).unwrap_err().to_string();
        let expected = "but must be greater than 0 and less than 1";
        assert_eq!(error, format!("held-out is {held_out}, {expected}"));
    }
    for (tokens, held_out, expected) in [
        (80, 0.1, "the held-out part has too few tokens, 8:"),
        (10, 0.9, "the training part has too few tokens, 1:"),
        (0, 0.1, "the training part has too few tokens, 0:"),
    ] {
        let error = split(tokens, 8, held_out).unwrap_err().to_string();
        let rest = "a window of 8 and its targets need 9: use more text or shorter windows";
        assert_eq!(error, format!("{expected} {rest}"));
    }
    assert!(split(90, 8, 0.1).is_ok());
    for tokens in [0, 1, 8] {
        let error = TokenWindows::new(places(tokens), 8).unwrap_err();
        assert!(matches!(error, TextError::TooShort { part: "text", .. }));
    }
    assert_eq!(TokenWindows::new(places(9), 8).unwrap().len(), 1);
    assert!(TokenWindows::new(places(9), usize::MAX - 1).is_err());
}

#[test]
#[should_panic(expected = "window 3 of 3 is out of bounds")]
fn get_out_of_bounds_panics() {
    let _ = TokenWindows::new(places(8), 3).unwrap().get(3);
}

#[test]
fn windows_print_without_their_tokens() {
    let windows = TokenWindows::new(places(8), 3).unwrap();
    let expected = "TokenWindows { tokens: 8, length: 3, windows: 3, .. }";
    assert_eq!(format!("{windows:?}"), expected);
    let window = format!("{:?}", windows.get(2).unwrap());
    assert_eq!(window, "TokenWindow { index: 2, .. }");
}

#[test]
fn a_batch_may_be_empty() {
    let (inputs, targets) = TextBatcher::default().batch(vec![], &Device::default());
    assert_eq!((inputs.dims(), targets.dims()), ([0, 0], [0, 0]));
}

#[test]
fn a_loader_shows_the_embedded_text() {
    let bytes = Tokenizer::bytes();
    let tokens = Text::embedded().unwrap().encode(&bytes).unwrap();
    let held_out = TokenWindows::new(tokens[..1_000].to_vec(), 64).unwrap();
    let loader = DataLoaderBuilder::new(TextBatcher::default()).batch_size(6);
    let loader = loader.build(held_out);
    let inputs = loader.iter().flat_map(|batch| rows(batch.unwrap().0));
    let inputs: Vec<u32> = inputs.flatten().map(|token| token as u32).collect();
    assert_eq!(inputs[..999], tokens[..999]);
    let shown = bytes.decode(&inputs[..70]).unwrap();
    let expected = "Genesis\n\n1:1 In the beginning God created the heavens and the earth.\n1";
    assert_eq!(shown, expected);
}
