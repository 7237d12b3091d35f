/// Splits the examples of a mini-batch into micro-batches with as little padding as possible.
///
/// `lengths` are the examples' tokens. The result has a list of indices for each micro-batch:
/// `most` lists, or one an example if there are fewer. None is empty. Examples are sorted by
/// length, equal ones by index, and the sorted list is cut into consecutive groups. A micro-batch
/// is padded to its longest example, so its size is the number of its examples times the longest.
/// The largest size is the least that any such cut has: the slowest micro-batch sets the pace of a
/// pipeline.
///
/// The same lengths give the same groups. `most` of 0 counts as 1.
///
/// ```
/// let lengths = [90, 10, 12, 100, 11, 9];
/// let groups = stovepipe_chat::micro_batches(&lengths, 3);
/// assert_eq!(groups, [vec![5, 1, 4, 2], vec![0], vec![3]]);
/// assert_eq!(stovepipe_chat::micro_batches(&[7, 7], 4), [[0], [1]]);
/// ```
#[must_use]
pub fn micro_batches(lengths: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| lengths[index]);
    let sorted: Vec<usize> = order.iter().map(|&index| lengths[index]).collect();
    let groups = most.max(1).min(sorted.len());

    // A limit below the longest example fits nothing. One group always fits into `high`.
    let longest = sorted.last().copied().unwrap_or(0) as u128;
    let (mut low, mut high) = (longest, longest * sorted.len() as u128);
    while low < high {
        let middle = low + (high - low) / 2;
        if cut(&sorted, groups, middle).len() <= groups {
            high = middle;
        } else {
            low = middle + 1;
        }
    }

    let mut rest = order.as_slice();
    let sizes = cut(&sorted, groups, low).into_iter();
    sizes
        .map(|size| {
            let (group, after) = rest.split_at(size);
            rest = after;
            group.to_vec()
        })
        .collect()
}

/// The sizes of groups, each as long as `limit` allows. No cut within the limit has fewer groups,
/// because a group without its first or last example fits, too. At the end of the list, groups have
/// one example where else there were fewer than `groups`: one example always fits.
fn cut(sorted: &[usize], groups: usize, limit: u128) -> Vec<usize> {
    let mut sizes = Vec::with_capacity(groups);
    let mut size = 0;
    for (index, &length) in sorted.iter().enumerate() {
        let fits = (size as u128 + 1) * length as u128 <= limit;
        // Examples from this one on, and groups that have not begun.
        let are_left = sorted.len() - index;
        let are_needed = groups.saturating_sub(sizes.len() + 1);
        if size > 0 && (!fits || are_left <= are_needed) {
            sizes.push(size);
            size = 0;
        }
        size += 1;
    }
    sizes.extend((size > 0).then_some(size));
    sizes
}
