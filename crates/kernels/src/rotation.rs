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
        let [_, length, _] = x.dims();
        self.check(&x, heads, length);
        self.turned(x, heads, (self.tables(length), length))
    }

    /// The same with these positions, one for each row of a sample, or of all samples in turn: of tokens that
    /// follow others which are not here, or of texts in one row.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_kernels::Rotation;
    ///
    /// let rotation = Rotation::new(&[1.0], 1.0, 8);
    /// let x = Tensor::<3>::ones([1, 5, 2], &Device::flex());
    /// let all = rotation.of_heads(x.clone(), 1);
    /// let last = rotation.of_heads_at(x.narrow(1, 0, 2), 1, &[3, 4]);
    /// assert_eq!(last.into_data(), all.narrow(1, 3, 2).into_data());
    /// ```
    ///
    /// # Panics
    ///
    /// If there are too many positions, too few, or larger ones than there are, or fewer columns than the heads have.
    #[must_use]
    pub fn of_heads_at(&self, x: Tensor<3>, heads: usize, positions: &[usize]) -> Tensor<3> {
        let ([samples, length, _], count) = (x.dims(), positions.len());
        let is_right = count == length || count == samples * length;
        assert!(is_right, "{count} positions for {:?}", x.dims());
        let most = positions.iter().max().map_or(0, |last| last + 1);
        self.check(&x, heads, most);
        let (all, half) = (self.tables(most), self.frequencies.len());
        let rows = |table: &[f32]| {
            let rows = positions
                .iter()
                .map(|position| &table[position * half..][..half]);
            rows.flatten().copied().collect()
        };
        let tables = Tables {
            cosines: rows(&all.cosines),
            sines: rows(&all.sines),
        };
        self.turned(x, heads, (tables, count))
    }

    fn check(&self, x: &Tensor<3>, heads: usize, positions: usize) {
        let fits = positions <= self.length && heads * self.width() <= x.dims()[2];
        assert!(
            fits,
            "{:?} has more than {self:?}, or less than {heads} heads",
            x.dims()
        );
    }

    /// Turns by tables with so many rows, again and again.
    fn turned(&self, x: Tensor<3>, heads: usize, (tables, rows): (Tables, usize)) -> Tensor<3> {
        if heads == 0 || rows == 0 {
            return x;
        }
        let kernel = RotateHeads {
            tables: tables.clone(),
            rows,
            half: self.frequencies.len(),
            heads,
        };
        let found = Operand::of(&x).and_then(|operand| kernel.run([operand]));
        found.map_or_else(
            || self.by_burn(x, heads, (tables, rows)),
            |(output, _)| output.into_tensor(),
        )
    }

    fn by_burn(&self, x: Tensor<3>, heads: usize, (tables, rows): (Tables, usize)) -> Tensor<3> {
        let [samples, length, columns] = x.dims();
        let (half, turned) = (self.frequencies.len(), heads * self.width());
        let table = |values: &[f32]| {
            let values = values[..rows * half].to_vec();
            let data = TensorData::new(values, [rows / length, length, 1, half]);
            let host = Tensor::<4>::from_data(data, &Device::flex());
            let table = host.to_device(&x.device().inner()).cast(x.dtype());
            if x.is_autodiff() {
                table.autodiff()
            } else {
                table
            }
        };
        let Tables { cosines, sines } = tables;
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
    /// As many rows of the tables are used, again and again.
    rows: usize,
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
                    let place = row % self.rows * half..(row % self.rows + 1) * half;
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
