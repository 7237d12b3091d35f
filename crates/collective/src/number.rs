use std::{
    fmt,
    ops::{Add, Div},
};

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};
use stovepipe_comm::Numbers;

/// A type of numbers that can be reduced: f32, f64, [`bf16`] and [`f16`](struct@f16).
pub trait Number: Pod + Send + Sync + fmt::Debug + sealed::Sealed {
    /// The type's name in errors.
    const NAME: &'static str;
    /// What it is added in.
    #[doc(hidden)]
    type Wide: Add<Output = Self::Wide> + Div<Output = Self::Wide> + Copy;

    #[doc(hidden)]
    fn widen(self) -> Self::Wide;
    /// Rounds to nearest, ties to even.
    #[doc(hidden)]
    fn narrow(wide: Self::Wide) -> Self;
    #[doc(hidden)]
    fn count(ranks: usize) -> Self::Wide;
    /// Makes of them what MPI adds up, if it can.
    #[doc(hidden)]
    const FOR_MPI: Option<fn(Vec<Self>) -> Numbers>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! number {
    ($type:ident, $wide:ident, $widen:expr, $narrow:expr, $for_mpi:expr) => {
        impl sealed::Sealed for $type {}

        impl Number for $type {
            const NAME: &'static str = stringify!($type);
            const FOR_MPI: Option<fn(Vec<Self>) -> Numbers> = $for_mpi;
            type Wide = $wide;

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }

            fn count(ranks: usize) -> $wide {
                ranks as $wide
            }
        }
    };
}

number!(f32, f32, |own| own, |wide| wide, Some(Numbers::F32));
number!(f64, f64, |own| own, |wide| wide, Some(Numbers::F64));
number!(bf16, f32, bf16::to_f32, bf16::from_f32, None);
number!(f16, f32, f16::to_f32, f16::from_f32, None);

/// What becomes of the ranks' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum, divided by the number of ranks.
    Mean,
}

/// Adds own numbers to a sum on its way.
pub(crate) fn add<T: Number>(sum: &mut [u8], own: &mut [T]) {
    in_blocks(sum, own, |sum, own| {
        *sum = T::narrow(sum.widen() + own.widen())
    });
}

/// Adds own numbers to a sum that has been everywhere else, and puts the result into both places.
pub(crate) fn finish<T: Number>(sum: &mut [u8], own: &mut [T], reduction: Reduction, ranks: usize) {
    let put = |sum: &mut T, own: &mut T, wide| {
        *sum = T::narrow(wide);
        *own = *sum;
    };
    let count = T::count(ranks);
    match reduction {
        Reduction::Sum => {
            in_blocks(sum, own, |sum, own| {
                put(sum, own, sum.widen() + own.widen())
            });
        }
        Reduction::Mean => {
            in_blocks(sum, own, |sum, own| {
                put(sum, own, (sum.widen() + own.widen()) / count)
            });
        }
    }
}

/// Goes through two lists of numbers, of which one is bytes that may not be aligned: its numbers are copied to
/// the stack and back, block by block, which costs next to nothing.
fn in_blocks<T: Number>(bytes: &mut [u8], own: &mut [T], change: impl Fn(&mut T, &mut T)) {
    const BLOCK: usize = 256;
    let blocks = bytes
        .chunks_mut(BLOCK * size_of::<T>())
        .zip(own.chunks_mut(BLOCK));
    for (bytes, own) in blocks {
        let mut block = [T::zeroed(); BLOCK];
        let block = &mut block[..own.len()];
        cast_slice_mut(block).copy_from_slice(bytes);
        block
            .iter_mut()
            .zip(own)
            .for_each(|(number, own)| change(number, own));
        bytes.copy_from_slice(cast_slice(block));
    }
}
