//! What the last layer returns.

use burn::tensor::{Device, FloatDType, Int, Tensor};
use stovepipe_kernels::{frozen_linear, linear_by_rows, linear_cross_entropy};
use stovepipe_pipeline::{CrossEntropy, Flow, FlowMapper, Packed, TokenLogits, error::PackError};

use crate::linear::like;

/// The logits of a decoder, `[n, length, vocabulary]`, or in training steps the last states and the table:
/// their loss needs only a few logits at a time.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_decoder::DecoderConfig;
/// use stovepipe_pipeline::{Pipeline, TokenLogits};
///
/// let layers = DecoderConfig::new(1000, 64, 2, 4).init(&Device::flex())?;
/// let pipeline = Pipeline::builder(layers).devices([Device::flex()]).build()?;
/// let tokens = Tensor::<2, Int>::zeros([1, 5], &Device::flex());
/// assert_eq!(pipeline.infer(tokens)?.logits().dims(), [1, 5, 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Logits(Form);

#[derive(Clone, Debug)]
enum Form {
    Whole(Tensor<3>),
    Product {
        states: Tensor<3>,
        table: Table,
        /// In which their product is computed.
        dtype: FloatDType,
    },
}

/// A row for each token.
#[derive(Clone, Debug)]
enum Table {
    Trained(Tensor<2>),
    /// Outside of the graph. It stays where it is, on the device of the states.
    Frozen(Tensor<2>),
}

impl Logits {
    pub(crate) fn whole(logits: Tensor<3>) -> Self {
        Self(Form::Whole(logits))
    }

    pub(crate) fn product(states: Tensor<3>, table: Tensor<2>, is_frozen: bool) -> Self {
        let dtype = FloatDType::from(states.dtype());
        let table = match is_frozen {
            true => Table::Frozen(table.inner()),
            false => Table::Trained(like(table, &states)),
        };
        Self(Form::Product {
            states,
            table,
            dtype,
        })
    }

    /// With targets that cost what any cost.
    pub(crate) fn measured_loss(self) -> Tensor<1> {
        let (Form::Whole(of_samples)
        | Form::Product {
            states: of_samples, ..
        }) = &self.0;
        let [samples, length, _] = of_samples.dims();
        let target = Tensor::zeros([samples, length], &of_samples.device().inner());
        self.cross_entropy(target, &CrossEntropy::new()).0
    }

    pub(crate) fn describe(&self) -> String {
        match &self.0 {
            Form::Whole(logits) => format!("logits {:?}", logits.dims()),
            Form::Product { states, .. } => format!("logits of states {:?}", states.dims()),
        }
    }
}

impl TokenLogits for Logits {
    fn logits(self) -> Tensor<3> {
        match self.0 {
            Form::Whole(logits) => logits,
            Form::Product { states, table, .. } => match table {
                Table::Trained(table) => linear_by_rows(states, table, None),
                Table::Frozen(table) => frozen_linear(states, table, None),
            },
        }
    }

    fn cross_entropy(
        self,
        target: Tensor<2, Int>,
        objective: &CrossEntropy,
    ) -> (Tensor<1>, Option<Tensor<1>>) {
        match self.0 {
            Form::Whole(logits) => logits.cross_entropy(target, objective),
            Form::Product {
                states,
                table,
                dtype,
            } => {
                let (Table::Trained(table) | Table::Frozen(table)) = table;
                let (states, target) = (states.flatten::<2>(0, 1), target.flatten(0, 1));
                // Losses are computed in f32, but products in the layer's precision.
                let states = states.cast(dtype);
                let table = if table.is_autodiff() {
                    table.cast(dtype)
                } else {
                    table
                };
                let ways = (objective.smoothing(), objective.ignored());
                let (loss, right) = linear_cross_entropy(states, table, target, ways.0, ways.1);
                (loss, objective.is_counting().then_some(right))
            }
        }
    }
}

impl Flow for Logits {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        Self(match self.0 {
            Form::Whole(logits) => Form::Whole(mapper.float(logits)),
            Form::Product {
                states,
                table,
                dtype,
            } => Form::Product {
                dtype,
                states: mapper.float(states),
                table: match table {
                    Table::Trained(table) => Table::Trained(mapper.float(table)),
                    frozen => frozen,
                },
            },
        })
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        let (Form::Whole(of_samples)
        | Form::Product {
            states: of_samples, ..
        }) = &self.0;
        of_samples.batch_sizes(sizes);
    }

    const PACKS: bool = true;

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        self.logits().pack(into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        Tensor::unpack(from, device).map(Self::whole)
    }

    fn split(self, sizes: &[usize]) -> Vec<Self> {
        match self.0 {
            Form::Whole(logits) => {
                let parts = Flow::split(logits, sizes).into_iter();
                parts.map(Self::whole).collect()
            }
            Form::Product {
                states,
                table,
                dtype,
            } => {
                let parts = Flow::split(states, sizes).into_iter();
                let part = |states| {
                    let table = table.clone();
                    Self(Form::Product {
                        states,
                        table,
                        dtype,
                    })
                };
                parts.map(part).collect()
            }
        }
    }
}
