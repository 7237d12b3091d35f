//! Cuts as ranges of layers.

use std::ops::Range;

/// The layers of each stage.
pub(crate) fn ranges(cut: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let next = cut.iter().map(|&count| {
        end += count;
        end - count..end
    });
    next.collect()
}

/// The stage of a layer.
pub(super) fn stage_of(layer: usize, ranges: &[Range<usize>]) -> usize {
    ranges.partition_point(|layers| layers.end <= layer)
}
