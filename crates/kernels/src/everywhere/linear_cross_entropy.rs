//! The cross-entropy of a linear layer's outputs in blocks of rows, with Burn's operations.

use burn::{
    backend::DispatchTensor,
    tensor::{Bool, DType, FloatDType, Int, Tensor, activation::log_softmax},
};
use stovepipe_autodiff::{Operation, arange};

/// Bytes of logits in memory at once.
const LOGITS: usize = 16 << 20;

/// Blocks have a multiple of so many rows: odd sizes do not suit a GPU's products.
const ALIGNED: usize = 32;

/// The rows of a block.
pub(crate) fn rows_at_once(classes: usize) -> usize {
    (LOGITS / size_of::<f32>() / classes).max(1)
}

/// Of x · tableᵀ, in f32, and how many rows are right, by the first and by the first five classes.
pub(crate) fn linear_cross_entropy(
    x: Tensor<2>,
    table: Tensor<2>,
    target: Tensor<1, Int>,
    (smoothing, ignored): (f64, Option<i64>),
) -> Tensor<1> {
    let entropy = Entropy {
        target,
        smoothing,
        ignored,
    };
    let found = match table.is_autodiff() {
        true => (entropy.clone()).run([x.clone().into_dispatch(), table.clone().into_dispatch()]),
        false => {
            let (entropy, table) = (entropy.clone(), table.clone());
            Frozen { entropy, table }.run([x.clone().into_dispatch()])
        }
    };
    // Under Burn's gradient checkpointing, all at once.
    found.map_or_else(
        || {
            let table = if x.is_autodiff() {
                table.autodiff()
            } else {
                table
            };
            let table = table.cast(FloatDType::from(x.dtype()));
            let [rows, classes] = [x.dims()[0], table.dims()[0]];
            entropy.losses(&x, &table, (0, rows), &places(classes, &entropy.target))
        },
        Tensor::from_dispatch,
    )
}

#[derive(Clone, Debug)]
struct Entropy {
    target: Tensor<1, Int>,
    smoothing: f64,
    ignored: Option<i64>,
}

/// The first of some rows, and how many.
type Rows = (usize, usize);

impl Entropy {
    fn logits(&self, x: &Tensor<2>, table: &Tensor<2>, (start, count): Rows) -> Tensor<2> {
        let rows = x.clone().narrow(0, start, count);
        rows.matmul(table.clone().transpose()).cast(wide(x.dtype()))
    }

    /// The classes of some rows, and which of these rows do not count.
    fn targets(&self, (start, count): Rows) -> (Tensor<2, Int>, Option<Tensor<2, Bool>>) {
        let target = self
            .target
            .clone()
            .narrow(0, start, count)
            .unsqueeze_dim::<2>(1);
        let ignored = self.ignored.map(|class| target.clone().equal_elem(class));
        match ignored {
            Some(mask) => (target.mask_fill(mask.clone(), 0), Some(mask)),
            None => (target, None),
        }
    }

    /// The sum of some rows' losses, and how many of them are right.
    fn losses(
        &self,
        x: &Tensor<2>,
        table: &Tensor<2>,
        block: Rows,
        places: &Tensor<2, Int>,
    ) -> Tensor<1> {
        let logits = log_softmax(self.logits(x, table, block), 1);
        let shape @ [_, classes] = logits.dims();
        let (target, ignored) = self.targets(block);
        let own = logits.clone().gather(1, target.clone());
        let all_own = own.clone().expand(shape);
        let is_before = places.clone().expand(shape).lower(target.expand(shape));
        let is_equal = logits.clone().equal(all_own.clone()).bool_and(is_before);
        let is_larger = logits.clone().greater(all_own).bool_or(is_equal);
        let rank = is_larger.int().sum_dim(1);
        let mut counts = own.clone().is_nan().bool_not();
        if let Some(mask) = &ignored {
            counts = counts.bool_and(mask.clone().bool_not());
        }
        let right = |most: i64| {
            let right = rank.clone().lower_elem(most).bool_and(counts.clone());
            right
                .int()
                .sum()
                .float()
                .cast(FloatDType::from(own.dtype()))
        };
        let right = [right(1), right(5)];
        let mut losses = own.mul_scalar(self.smoothing - 1.0);
        if self.smoothing > 0.0 {
            losses = losses
                - logits
                    .sum_dim(1)
                    .mul_scalar(self.smoothing / classes as f64);
        }
        if let Some(mask) = ignored {
            losses = losses.mask_fill(mask, 0.0);
        }
        let [first, among_five] = right;
        Tensor::cat(vec![losses.sum(), first, among_five], 0)
    }

    /// The gradient of some rows' logits.
    fn of_logits(
        &self,
        x: &Tensor<2>,
        table: &Tensor<2>,
        block: Rows,
        places: &Tensor<2, Int>,
    ) -> Tensor<2> {
        let share = log_softmax(self.logits(x, table, block), 1).exp();
        let shape @ [_, classes] = share.dims();
        let (target, ignored) = self.targets(block);
        let share = share.sub_scalar(self.smoothing / classes as f64);
        let is_target = places
            .clone()
            .expand(shape)
            .equal(target.expand(shape))
            .float();
        let is_target = is_target.cast(FloatDType::from(share.dtype()));
        let gradient = share + is_target.mul_scalar(self.smoothing - 1.0);
        match ignored {
            Some(mask) => gradient.mask_fill(mask.expand(shape), 0.0),
            None => gradient,
        }
    }

    /// Blocks of rows.
    fn blocks([rows, classes]: [usize; 2]) -> impl Iterator<Item = Rows> {
        let most = rows_at_once(classes);
        let most = if most > ALIGNED {
            most - most % ALIGNED
        } else {
            most
        };
        (0..rows)
            .step_by(most)
            .map(move |start| (start, most.min(rows - start)))
    }

    fn forward(&self, x: &Tensor<2>, table: &Tensor<2>) -> DispatchTensor {
        let table = &table.clone().cast(FloatDType::from(x.dtype()));
        let [rows, classes] = [x.dims()[0], table.dims()[0]];
        let places = places(classes, &self.target);
        let blocks = Self::blocks([rows, classes]);
        let losses = blocks.map(|block| self.losses(x, table, block, &places));
        let sum = losses.reduce(|sum, next| sum + next);
        let none = || Tensor::zeros([3], (&x.device(), wide(x.dtype()).into()));
        sum.unwrap_or_else(none).into_dispatch()
    }

    fn backward(
        &self,
        (x, table): (Tensor<2>, Tensor<2>),
        gradient: DispatchTensor,
        [needs_x, needs_table]: [bool; 2],
    ) -> [Option<DispatchTensor>; 2] {
        let gradient = Tensor::<1>::from_dispatch(gradient)
            .narrow(0, 0, 1)
            .unsqueeze::<2>();
        let (of_type, of_table_type) =
            (FloatDType::from(x.dtype()), FloatDType::from(table.dtype()));
        let table = table.cast(of_type);
        let (mut of_x, mut of_table) = (Vec::new(), None::<Tensor<2>>);
        let [rows, classes] = [x.dims()[0], table.dims()[0]];
        let places = places(classes, &self.target);
        for block @ (start, count) in Self::blocks([rows, classes]) {
            let of_logits = self.of_logits(&x, &table, block, &places) * gradient.clone();
            let of_logits = of_logits.cast(of_type);
            if needs_table {
                let rows = x.clone().narrow(0, start, count);
                let own = of_logits
                    .clone()
                    .transpose()
                    .matmul(rows)
                    .cast(of_table_type);
                of_table = Some(match of_table.take() {
                    Some(sum) => sum + own,
                    None => own,
                });
            }
            if needs_x {
                of_x.push(of_logits.matmul(table.clone()));
            }
        }
        let of_x = needs_x.then(|| match of_x.is_empty() {
            true => x.zeros_like(),
            false => Tensor::cat(of_x, 0),
        });
        [of_x, of_table].map(|own| own.map(Tensor::into_dispatch))
    }
}

/// The classes `[1, classes]`, on the device of the targets.
fn places(classes: usize, target: &Tensor<1, Int>) -> Tensor<2, Int> {
    arange(0..classes as i64, &target.device()).unsqueeze_dim(0)
}

/// The type of losses.
fn wide(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

impl Operation<2> for Entropy {
    fn forward(&self, inputs: [DispatchTensor; 2]) -> DispatchTensor {
        let [x, table] = inputs.map(Tensor::from_dispatch);
        self.forward(&x, &table)
    }

    fn backward(
        &self,
        inputs: [DispatchTensor; 2],
        gradient: DispatchTensor,
        needed: [bool; 2],
    ) -> [Option<DispatchTensor>; 2] {
        let [x, table] = inputs.map(Tensor::from_dispatch);
        self.backward((x, table), gradient, needed)
    }
}

/// With a table that is not trained.
#[derive(Clone, Debug)]
struct Frozen {
    entropy: Entropy,
    table: Tensor<2>,
}

impl Operation<1> for Frozen {
    fn forward(&self, [x]: [DispatchTensor; 1]) -> DispatchTensor {
        self.entropy.forward(&Tensor::from_dispatch(x), &self.table)
    }

    fn backward(
        &self,
        [x]: [DispatchTensor; 1],
        gradient: DispatchTensor,
        [needs_x]: [bool; 1],
    ) -> [Option<DispatchTensor>; 1] {
        let both = (Tensor::from_dispatch(x), self.table.clone());
        let [of_x, _] = self.entropy.backward(both, gradient, [needs_x, false]);
        [of_x]
    }
}
