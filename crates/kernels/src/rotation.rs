//! Positions as rotations of queries and keys.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use burn::tensor::{Device, Tensor, TensorData};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::planes::{in_shares, joined, vectorised};

/// The rotation of each position (Su et al., "RoFormer: Enhanced Transformer with Rotary Position
/// Embedding", 2021): value i of a head and value i + w / 2 are turned together by the angle position ·
/// frequencyᵢ, as in the models of Hugging Face. Burn's `RotaryEncoding` turns neighbours together.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::Rotation;
///
/// // One head of width 2; the second position turns by a right angle. The third column is no head.
/// let rotation = Rotation::new(&[std::f32::consts::FRAC_PI_2], 1.0, 2);
/// let x = Tensor::<3>::from_floats([[[1.0, 2.0, 9.0, 9.0], [1.0, 2.0, 9.0, 9.0]]], &Device::flex());
/// let y = rotation.of_heads(x, 1).into_data().try_to_vec::<f32>().unwrap();
/// let expected = [1.0, 2.0, 9.0, 9.0, -2.0, 1.0, 9.0, 9.0];
/// assert!(y.iter().zip(expected).all(|(y, x)| (y - x).abs() < 1e-6));
/// ```
#[derive(Clone)]
pub struct Rotation {
    frequencies: Arc<[f32]>,
    scale: f32,
    length: usize,
    /// For as many positions as were needed so far: a model may have far more than its texts.
    tables: Arc<Mutex<Tables>>,
}

/// For each position, a number for each frequency.
#[derive(Clone, Debug, Default)]
struct Tables {
    cosines: Arc<[f32]>,
    sines: Arc<[f32]>,
}

impl Rotation {
    /// Turns positions from 0 to `length` − 1 by these frequencies, in radians, and multiplies what is
    /// turned by `scale`. Clones share their tables.
    ///
    /// Angles are products in f32, as in PyTorch: in more bits, late positions would differ from what a
    /// model was trained with.
    #[must_use]
    pub fn new(frequencies: &[f32], scale: f32, length: usize) -> Self {
        Self {
            frequencies: frequencies.into(),
            scale,
            length,
            tables: Arc::default(),
        }
    }

    /// The number of positions.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Tables of `length` positions or more.
    fn tables(&self, length: usize) -> Tables {
        let mut known = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if known.cosines.len() < length * self.frequencies.len() {
            let length = length.next_power_of_two().min(self.length);
            let angles = (0..length).flat_map(|position| {
                let angle = move |frequency: &f32| f64::from(position as f32 * frequency);
                self.frequencies.iter().map(angle)
            });
            let angles: Vec<f64> = angles.collect();
            let table = |of: fn(f64) -> f64| {
                let scaled = |angle: &f64| of(*angle) as f32 * self.scale;
                angles.iter().map(scaled).collect()
            };
            *known = Tables {
                cosines: table(f64::cos),
                sines: table(f64::sin),
            };
        }
        known.clone()
    }

    /// The width of a head.
    fn width(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Turns the first `heads` heads of each row of `x` `[n, length, columns]`, row i by position i. The
    /// other columns stay.
    ///
    /// # Panics
    ///
    /// If there are more rows than positions, or fewer columns than the heads have.
    #[must_use]
    pub fn of_heads(&self, x: Tensor<3>, heads: usize) -> Tensor<3> {
        let [_, length, columns] = x.dims();
        let fits = length <= self.length && heads * self.width() <= columns;
        assert!(
            fits,
            "{:?} has more than {self:?}, or less than {heads} heads",
            x.dims()
        );
        if heads == 0 {
            return x;
        }
        let kernel = RotateHeads {
            tables: self.tables(length),
            half: self.frequencies.len(),
            heads,
        };
        let found = Operand::of(&x).and_then(|operand| kernel.run([operand]));
        found.map_or_else(
            || self.by_burn(x, heads),
            |(output, _)| output.into_tensor(),
        )
    }

    fn by_burn(&self, x: Tensor<3>, heads: usize) -> Tensor<3> {
        let [samples, length, columns] = x.dims();
        let (half, turned) = (self.frequencies.len(), heads * self.width());
        let table = |values: &[f32]| {
            let values = values[..length * half].to_vec();
            let data = TensorData::new(values, [1, length, 1, half]);
            let host = Tensor::<4>::from_data(data, &Device::flex());
            let table = host.to_device(&x.device().inner()).cast(x.dtype());
            if x.is_autodiff() {
                table.autodiff()
            } else {
                table
            }
        };
        let Tables { cosines, sines } = self.tables(length);
        let (cosines, sines) = (table(&cosines), table(&sines));
        let part = x.clone().narrow(2, 0, turned);
        let part = part.reshape([samples, length, heads, 2 * half]);
        let [a, b] = [0, half].map(|first| part.clone().narrow(3, first, half));
        let first = a.clone() * cosines.clone() - b.clone() * sines.clone();
        let second = b * cosines + a * sines;
        let part = Tensor::cat(vec![first, second], 3).reshape([samples, length, turned]);
        if turned == columns {
            return part;
        }
        Tensor::cat(vec![part, x.narrow(2, turned, columns - turned)], 2)
    }
}

impl fmt::Debug for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (length, width) = (self.length, self.width());
        write!(f, "{length} positions of heads of width {width}")
    }
}

#[derive(Clone, Debug)]
struct RotateHeads {
    tables: Tables,
    /// The frequencies, half of the width of a head.
    half: usize,
    heads: usize,
}

impl Kernel<1> for RotateHeads {
    type Saved = ();

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, ()) {
        (self.turned(x, 1.0), ())
    }

    fn backward(&self, (): (), gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.turned(gradient, -1.0))]
    }
}

impl RotateHeads {
    /// Turned forward, or backward for −1: gradients turn back.
    fn turned(&self, x: FlexTensor, direction: f32) -> FlexTensor {
        let x = contiguous(x);
        let [samples, length, columns] = x.layout().shape().dims();
        let (all, half) = (values(&x), self.half);
        let shares = in_shares(samples * length, all.len(), &|rows| {
            let mut output = all[rows.start * columns..rows.end * columns].to_vec();
            vectorised!(
                || for (row, output) in rows.zip(output.chunks_exact_mut(columns)) {
                    let place = row % length * half..(row % length + 1) * half;
                    let cosines = &self.tables.cosines[place.clone()];
                    let sines = &self.tables.sines[place];
                    for head in output.chunks_exact_mut(2 * half).take(self.heads) {
                        let (first, second) = head.split_at_mut(half);
                        let values = first.iter_mut().zip(second);
                        for ((a, b), (cosine, sine)) in values.zip(cosines.iter().zip(sines)) {
                            let sine = sine * direction;
                            (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
                        }
                    }
                }
            );
            output
        });
        tensor(joined(shares), x.layout().shape().clone())
    }
}
