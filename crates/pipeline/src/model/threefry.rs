//! Threefry-2×32 with 20 rounds, a generator of random words that needs no state: each is a function of a key
//! and a counter (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
//!
//! The same rounds run on words of the CPU and on tensors of a device, and give the same bits.

use burn::tensor::{Device, Int, IntDType, Tensor};
use pulp::Arch;

pub(crate) type Key = [u32; 2];

/// 32 bits, or many of them, which wrap around.
trait Word: Clone {
    fn plus(self, other: Self) -> Self;
    fn plus_constant(self, constant: u32) -> Self;
    /// Turns them left.
    fn turned(self, bits: u32) -> Self;
    fn xor(self, other: Self) -> Self;
}

impl Word for u32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn plus_constant(self, constant: u32) -> Self {
        self.wrapping_add(constant)
    }
    #[inline(always)]
    fn turned(self, bits: u32) -> Self {
        self.rotate_left(bits)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }
}

/// Of type `u32`.
impl Word for Tensor<2, Int> {
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn plus_constant(self, constant: u32) -> Self {
        self.add_scalar(constant)
    }
    fn turned(self, bits: u32) -> Self {
        let low = self.clone().bitwise_right_shift_scalar(32 - bits);
        self.bitwise_left_shift_scalar(bits).bitwise_or(low)
    }
    fn xor(self, other: Self) -> Self {
        self.bitwise_xor(other)
    }
}

const TURNS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

#[inline(always)]
fn rounds<W: Word>([first, second]: Key, counter: [W; 2]) -> [W; 2] {
    let keys = [first, second, 0x1BD1_1BDA ^ first ^ second];
    let [a, b] = counter;
    let (mut a, mut b) = (a.plus_constant(keys[0]), b.plus_constant(keys[1]));
    for group in 0..5 {
        for round in 0..4 {
            a = a.plus(b.clone());
            b = b.turned(TURNS[(4 * group + round) % 8]).xor(a.clone());
        }
        let next = group + 1;
        a = a.plus_constant(keys[next % 3]);
        b = b.plus_constant(keys[(next + 1) % 3].wrapping_add(next as u32));
    }
    [a, b]
}

/// Two words.
pub(crate) fn words(key: Key, counter: [u32; 2]) -> [u32; 2] {
    rounds(key, counter)
}

/// Numbers made of the words of the counters `[first, 0]`, `[first, 1]` and so on: the first ones in the first
/// half of `numbers`, the second ones in the other.
pub(crate) fn fill(
    key: Key,
    first: u32,
    numbers: &mut [f32],
    number: impl Fn([u32; 2]) -> [f32; 2],
) {
    let (one, other) = numbers.split_at_mut(numbers.len().div_ceil(2));
    // Compiled for each set of instructions: the loop has no branches.
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for (index, (one, other)) in one.iter_mut().zip(other.iter_mut()).enumerate() {
                [*one, *other] = number(rounds(key, [first, index as u32]));
            }
        },
    );
    if one.len() > other.len()
        && let Some(last) = one.last_mut()
    {
        [*last, _] = number(rounds(key, [first, other.len() as u32]));
    }
}

/// The words for `rows` consecutive numbers `first`, each of `[rows, columns]`, on a device.
pub(crate) fn tensors(
    key: Key,
    (first, rows): (u32, usize),
    columns: usize,
    device: &Device,
) -> [Tensor<2, Int>; 2] {
    let count = |from: i64, length: usize| {
        let numbers = Tensor::<1, Int>::arange(from..from + length as i64, device);
        numbers.cast(IntDType::U32)
    };
    let of_row = count(first.into(), rows).reshape([rows, 1]);
    let of_column = count(0, columns).reshape([1, columns]);
    let shape = [rows, columns];
    rounds(key, [of_row.expand(shape), of_column.expand(shape)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The authors' known answers.
    #[test]
    fn words_are_those_of_the_reference() {
        let known = [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([!0, !0], [!0, !0], [0x1cb9_96fc, 0xbb00_2be7]),
            (
                [0x1319_8a2e, 0x0370_7344],
                [0x243f_6a88, 0x85a3_08d3],
                [0xc492_3a9c, 0x483d_f7a0],
            ),
        ];
        for (key, counter, expected) in known {
            assert_eq!(words(key, counter), expected);
        }
    }

    #[test]
    fn tensors_have_the_same_bits() {
        let (key, device) = ([0xdead_beef, 0x8000_0001], Device::flex());
        let found = tensors(key, (u32::MAX - 1, 2), 5, &device);
        let found = found.map(|words| words.into_data().iter::<i64>().collect::<Vec<_>>());
        for (index, (one, other)) in found[0].iter().zip(&found[1]).enumerate() {
            let counter = [u32::MAX - 1 + (index / 5) as u32, (index % 5) as u32];
            assert_eq!(words(key, counter).map(i64::from), [*one, *other]);
        }
        for length in [1, 2, 7, 8] {
            let mut numbers = vec![0.0; length];
            let exact = |words: [u32; 2]| words.map(|word| (word >> 8) as f32);
            fill(key, 3, &mut numbers, exact);
            let half = length.div_ceil(2);
            for (index, number) in numbers.into_iter().enumerate() {
                let words = words(key, [3, (index % half) as u32]);
                assert_eq!(number, exact(words)[index / half], "{index} of {length}");
            }
        }
    }
}
