//! Threefry-2×32 with 20 rounds, a generator of random words that needs no state: each is a function of a key
//! and a counter (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
//!
//! The same rounds run on words of the CPU and on tensors of a device, and give the same bits.

use burn::tensor::{Device, Int, IntDType, Tensor};
use pulp::{Arch, Scalar, Simd, WithSimd};
use stovepipe_autodiff::arange;

/// What random numbers are a function of, beside their places.
pub type Key = [u32; 2];

/// 32 bits, or many of them, which wrap around.
trait Word: Clone {
    fn plus(self, other: Self) -> Self;
    fn plus_constant(self, constant: u32) -> Self;
    /// Turns them left.
    fn turned(self, bits: u32) -> Self;
    fn xor(self, other: Self) -> Self;
}

/// Words in a vector of the CPU.
#[derive(Clone, Copy)]
struct Lanes<S: Simd> {
    simd: S,
    words: S::u32s,
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn of(simd: S, word: u32) -> Self {
        let words = simd.splat_u32s(word);
        Self { simd, words }
    }
}

impl<S: Simd> Word for Lanes<S> {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        let words = self.simd.add_u32s(self.words, other.words);
        Self { words, ..self }
    }
    #[inline(always)]
    fn plus_constant(self, constant: u32) -> Self {
        self.plus(Self::of(self.simd, constant))
    }
    #[inline(always)]
    fn turned(self, bits: u32) -> Self {
        let Self { simd, words } = self;
        let amount = |bits| simd.splat_u32s(bits);
        let high = simd.wrapping_dyn_shl_u32s(words, amount(bits));
        let low = simd.wrapping_dyn_shr_u32s(words, amount(32 - bits));
        let words = simd.or_u32s(high, low);
        Self { simd, words }
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        let words = self.simd.xor_u32s(self.words, other.words);
        Self { words, ..self }
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

#[inline(always)]
fn rounds<W: Word>([first, second]: Key, counter: [W; 2]) -> [W; 2] {
    let keys = [first, second, 0x1BD1_1BDA ^ first ^ second];
    let [a, b] = counter;
    let (mut a, mut b) = (a.plus_constant(keys[0]), b.plus_constant(keys[1]));
    // Written out, so that the words stay in registers.
    macro_rules! four_rounds {
        ($number:literal: $($bits:literal)+) => {
            $(
                a = a.plus(b.clone());
                b = b.turned($bits).xor(a.clone());
            )+
            a = a.plus_constant(keys[$number % 3]);
            b = b.plus_constant(keys[($number + 1) % 3].wrapping_add($number));
        };
    }
    four_rounds!(1: 13 15 26 6);
    four_rounds!(2: 17 29 16 24);
    four_rounds!(3: 13 15 26 6);
    four_rounds!(4: 17 29 16 24);
    four_rounds!(5: 13 15 26 6);
    [a, b]
}

/// Two random words, which may be the key of others.
///
/// ```
/// use stovepipe_kernels::random::words;
///
/// assert_eq!(words([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]); // as the authors say
/// ```
#[must_use]
pub fn words(key: Key, [first, second]: [u32; 2]) -> [u32; 2] {
    let simd = Scalar::new();
    let [one, other] = rounds(key, [first, second].map(|word| Lanes::of(simd, word)));
    [one.words, other.words]
}

/// Counters whose words are computed at once.
pub(super) const BLOCK: usize = 256;

/// The words of so many counters from `[first, second]` on.
#[inline(always)]
pub(super) fn block(key: Key, counter: [u32; 2], words: &mut [[u32; BLOCK]; 2]) {
    Arch::new().dispatch(Block {
        key,
        counter,
        words,
    });
}

/// Numbers made of the words of the counters `[first, 0]`, `[first, 1]` and so on: the first ones in the first
/// half of `numbers`, the second ones in the other.
pub(super) fn fill(
    key: Key,
    first: u32,
    numbers: &mut [f32],
    number: impl Fn([u32; 2]) -> [f32; 2],
) {
    let (one, mut other) = numbers.split_at_mut(numbers.len().div_ceil(2));
    let mut words = [[0; BLOCK]; 2];
    for (index, one) in one.chunks_mut(BLOCK).enumerate() {
        block(key, [first, (index * BLOCK) as u32], &mut words);
        let [first, second] = &words;
        let end = one.len().min(other.len());
        let (now, later) = std::mem::take(&mut other).split_at_mut(end);
        other = later;
        let pairs = first.iter().zip(second);
        for ((one, other), (first, second)) in one.iter_mut().zip(now).zip(pairs) {
            [*one, *other] = number([*first, *second]);
        }
        if let Some(last) = one.get_mut(end) {
            [*last, _] = number([first[end], second[end]]);
        }
    }
}

/// The words of consecutive counters, by vectors.
struct Block<'a> {
    key: Key,
    /// The first one.
    counter: [u32; 2],
    words: &'a mut [[u32; BLOCK]; 2],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [one, other] = self.words;
        let [first, second] = self.counter;
        for (index, counter) in one.iter_mut().enumerate() {
            *counter = second.wrapping_add(index as u32);
        }
        // A block is a multiple of every vector's length.
        let (ones, _) = S::as_mut_simd_u32s(one);
        let (others, _) = S::as_mut_simd_u32s(other);
        for (one, other) in ones.iter_mut().zip(others) {
            let counter = [Lanes::of(simd, first), Lanes { simd, words: *one }];
            let words = rounds(self.key, counter);
            [*one, *other] = [words[0].words, words[1].words];
        }
    }
}

/// The words for `rows` consecutive numbers `first`, each of `[rows, columns]`, on a device.
pub(super) fn tensors(
    key: Key,
    (first, rows): (u32, usize),
    columns: usize,
    device: &Device,
) -> [Tensor<2, Int>; 2] {
    let count = |length: usize| arange(0..length as i64, device).cast(IntDType::U32);
    let of_row = count(rows).reshape([rows, 1]).plus_constant(first);
    let of_column = count(columns).reshape([1, columns]);
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
        for length in [1, 2, 7, 8, 511, 512, 513, 514, 515, 1200] {
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
