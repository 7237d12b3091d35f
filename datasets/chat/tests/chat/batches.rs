//! Micro-batches of examples of different lengths.

use proptest::prelude::*;
use stovepipe_chat::micro_batches;

/// The largest padded size.
fn largest(lengths: &[usize], groups: &[Vec<usize>]) -> usize {
    let size = |group: &Vec<usize>| {
        let longest = group.iter().map(|&index| lengths[index]).max().unwrap();
        group.len() * longest
    };
    groups.iter().map(size).max().unwrap_or(0)
}

/// The least largest size of all cuts of sorted lengths into at most `most` groups.
fn least(sorted: &[usize], most: usize) -> usize {
    let Some(&longest) = sorted.last() else {
        return 0;
    };
    if most == 1 {
        return sorted.len() * longest;
    }
    let of_last = |size: usize| {
        let before = least(&sorted[..sorted.len() - size], most - 1);
        before.max(size * longest)
    };
    (1..=sorted.len()).map(of_last).min().unwrap()
}

#[test]
fn few_examples_are_groups_of_their_own() {
    assert!(micro_batches(&[], 3).is_empty());
    assert_eq!(micro_batches(&[5, 3], 3), [[1], [0]]);
    assert_eq!(micro_batches(&[5, 3, 5], 1), [[1, 0, 2]]);
    assert_eq!(micro_batches(&[5, 3], 0), [[1, 0]]);
    assert_eq!(micro_batches(&[0, 0, 0], 2), [vec![0, 1], vec![2]]);
    let huge = usize::MAX;
    assert_eq!(micro_batches(&[huge, huge, huge], 2).len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_largest_size_is_the_least_possible(
        lengths in prop::collection::vec(0..40_usize, 0..10),
        most in 1..6_usize,
    ) {
        let groups = micro_batches(&lengths, most);
        prop_assert_eq!(groups.len(), most.min(lengths.len()));
        prop_assert!(groups.iter().all(|group| !group.is_empty()));

        let mut sorted: Vec<usize> = (0..lengths.len()).collect();
        sorted.sort_by_key(|&index| (lengths[index], index));
        prop_assert_eq!(groups.concat(), &*sorted);
        let sorted: Vec<usize> = sorted.into_iter().map(|index| lengths[index]).collect();
        prop_assert_eq!(largest(&lengths, &groups), least(&sorted, most));
    }
}
