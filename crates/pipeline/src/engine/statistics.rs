//! Running statistics, updated once per mini-batch.
//!
//! Batch norm normalizes each micro-batch by itself. Its running statistics move once per mini-batch, by the
//! mean and variance of all of it (torchgpipe calls this deferred batch norm). The engine sees only the cells
//! that hold the statistics, before and after a forward pass; the layer may be Burn's or custom.
//!
//! With momentum q, a forward pass of micro-batch i moves a cell from r to rᵢ = (1 − q) r + q bᵢ, where bᵢ is
//! the micro-batch's mean or variance. Each pass starts from the same r. Let wᵢ be the micro-batch's share of
//! the samples. The mini-batch's mean is Σ wᵢ bᵢ, so its cell becomes Σ wᵢ rᵢ for any q. The mini-batch's
//! variance is the mean of the variances plus the variance of the means, so its cell becomes
//! Σ wᵢ rᵢ + V / q, where V is the variance of the means' cells. Burn does not expose q; [`momentum`] finds it
//! with two forward passes that start from different r. Any other statistic is averaged. The sums take one
//! micro-batch after the other (Welford's method), so a step keeps two rows of cells, however many there are.
//!
//! In mixed precision, the cells of a forward pass have few bits, and small changes of r would vanish. So the
//! cells of norms that train start at zero, which they do not read, and end at q bᵢ. The model's r stays in
//! f32 and becomes (1 − q) r + Σ wᵢ (q bᵢ).
//!
//! To recalibrate them, the cells of norms that train start at zero in any precision, and all passes of many
//! mini-batches are combined: divided by q, the sums are exact means and variances.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use burn::{
    module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{DType, Tensor, container::TensorContainer},
};

use crate::{engine::finite::is_finite, model::moved::moved};

/// The cells of a layer that hold running statistics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    all: HashSet<ParamId>,
    /// The mean's cell by the variance's cell, for batch norms.
    means: HashMap<ParamId, ParamId>,
}

/// The values of cells.
type Values = TensorContainer<ParamId>;

/// What is known of the momenta of batch norms, by the cell of the mean.
#[derive(Clone, Debug, Default)]
pub(crate) struct Momenta {
    found: HashMap<ParamId, f64>,
    /// Not to be looked for again: their cells did not move in a whole step.
    given_up: HashSet<ParamId>,
}

impl Momenta {
    fn of(&self, mean: ParamId) -> Option<f64> {
        self.found.get(&mean).copied()
    }

    fn is_settled(&self, mean: &ParamId) -> bool {
        self.found.contains_key(mean) || self.given_up.contains(mean)
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.found.extend(other.found);
    }

    /// A step has looked for the momenta of all norms that train.
    fn give_up_others<M: Module>(&mut self, layer: &M, cells: &Cells) {
        if !cells.is_settled(layer, self) {
            let missing = training_means(layer).into_iter();
            let missing = missing.filter(|mean| !self.found.contains_key(mean));
            self.given_up.extend(missing);
        }
    }
}

impl Cells {
    pub(crate) fn of<M: Module>(layer: &M) -> Self {
        let mut find = FindNorms::default();
        // Statistics ignore `set_require_grad`; parameters do not.
        (layer.valid().train().set_require_grad(true)).visit(&mut find);
        find.cells
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a layer has batch norms that train.
    pub(crate) fn can_recalibrate<M: Module>(&self, layer: &M) -> bool {
        !self.means.is_empty() && !training_means(&layer.valid().train()).is_empty()
    }

    /// Whether there is no momentum to look for, of a batch norm that trains.
    pub(crate) fn is_settled<M: Module>(&self, layer: &M, momenta: &Momenta) -> bool {
        let is_settled = |mean: &ParamId| momenta.is_settled(mean);
        self.means.values().all(is_settled) || training_means(layer).iter().all(is_settled)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.all.iter().copied()
    }

    /// The values of the cells, with pending updates.
    fn read<M: Module>(&self, layer: &M) -> Values {
        struct Read<'a> {
            cells: &'a HashSet<ParamId>,
            values: Values,
        }

        impl ModuleVisitor for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.cells.contains(&param.id) {
                    self.values.register(param.id, param.val());
                }
            }
        }

        let mut read = Read {
            cells: &self.all,
            values: Values::new(),
        };
        // `valid` applies pending updates; a visit of the layer itself reads values one update late.
        layer.valid().visit(&mut read);
        read.values
    }

    /// The same as one row, in the order of a visit.
    fn read_row<M: Module>(&self, layer: &M) -> Tensor<1> {
        struct Read<'a> {
            cells: &'a HashSet<ParamId>,
            numbers: Vec<Tensor<1>>,
        }

        impl ModuleVisitor for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.cells.contains(&param.id) {
                    self.numbers.push(param.val().reshape([-1]));
                }
            }
        }

        let mut read = Read {
            cells: &self.all,
            numbers: Vec::new(),
        };
        layer.valid().visit(&mut read);
        Tensor::cat(read.numbers, 0)
    }

    /// Writes the cells that `layer` shares. Mapping a clone reaches the cells but leaves the layer's
    /// parameters alone.
    fn write<M: Module>(&self, layer: &M, new: impl CellMapper) {
        struct Write<'a, C> {
            cells: &'a HashSet<ParamId>,
            new: C,
        }

        impl<C: CellMapper> ModuleMapper for Write<'_, C> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if !self.cells.contains(&param.id) {
                    return param;
                }
                let id = param.id;
                param.map(|old| {
                    let is_autodiff = old.is_autodiff();
                    let new = self.new.value(id, old.inner());
                    if is_autodiff { new.autodiff() } else { new }
                })
            }
        }

        let cells = &self.all;
        let _ = layer.clone().map(&mut Write { cells, new });
    }
}

/// Computes the new value of a cell from the old one.
trait CellMapper {
    fn value<const D: usize>(&mut self, id: ParamId, old: Tensor<D>) -> Tensor<D>;
}

/// A layer's statistics at the start of a step and after each forward pass.
pub(crate) struct Statistics {
    cells: Cells,
    start: Values,
    narrow: Option<Narrow>,
    /// The sizes of the micro-batches, if all of them are counted here, and nothing else.
    sizes: Option<Arc<[usize]>>,
    /// With `sizes`: of the first micro-batches.
    begun: Moments,
    /// All cells of the layer in one row per other micro-batch: many small tensors would be slow.
    after: BTreeMap<usize, Tensor<1>>,
}

/// Rows of micro-batches, added up one after the other.
#[derive(Clone, Default)]
struct Moments {
    micro_batches: usize,
    samples: usize,
    /// The mean of the rows, and the sum of the squares of what they differ from it.
    rows: Option<[Tensor<1>; 2]>,
}

impl Moments {
    /// Adds the row of a micro-batch with so many samples.
    fn add(&mut self, row: Tensor<1>, samples: usize) {
        let before = self.samples as f64;
        self.samples += samples;
        self.micro_batches += 1;
        let share = samples as f64 / self.samples as f64;
        self.rows = Some(match self.rows.take() {
            None => [row.clone(), row.zeros_like()],
            // By differences, so that a cell that did not move keeps its bits.
            Some([mean, squares]) => {
                let apart = row - mean.clone();
                let added = apart.clone().powi_scalar(2).mul_scalar(before * share);
                [mean + apart.mul_scalar(share), squares + added]
            }
        });
    }
}

/// Adds the statistics of further micro-batches, which are counted from `first` on, layer by layer.
pub(crate) fn extend_all(all: &mut Vec<Statistics>, later: Vec<Statistics>, first: usize) {
    if all.is_empty() {
        *all = later;
        return;
    }
    (all.iter_mut().zip(later)).for_each(|(all, later)| all.extend(later, first));
}

/// The start values of cells with fewer bits than the model's.
struct Narrow {
    start: Values,
    /// Those that start at zero.
    zeros: HashSet<ParamId>,
}

impl Statistics {
    /// Starts to count. `live` has its own cells.
    pub(crate) fn begin<M: Module>(cells: Cells, live: &M) -> Self {
        Self {
            start: if cells.is_empty() {
                Values::new()
            } else {
                cells.read(live)
            },
            cells,
            narrow: None,
            sizes: None,
            begun: Moments::default(),
            after: BTreeMap::new(),
        }
    }

    /// Adds up micro-batches of these sizes as they come.
    pub(crate) fn of_sizes(self, sizes: Option<Arc<[usize]>>) -> Self {
        Self { sizes, ..self }
    }

    /// The same with cells that start at zero, because `live` has fewer bits than the model's `layer`, or to
    /// recalibrate.
    pub(crate) fn begin_at_zero<M: Module>(cells: Cells, layer: &M, live: &M) -> Self {
        struct Zero<'a>(&'a HashSet<ParamId>);

        impl CellMapper for Zero<'_> {
            fn value<const D: usize>(&mut self, id: ParamId, old: Tensor<D>) -> Tensor<D> {
                if self.0.contains(&id) {
                    old.zeros_like()
                } else {
                    old
                }
            }
        }

        if cells.is_empty() {
            return Self::begin(cells, live);
        }
        let mut zeros = training_means(live);
        let means = zeros.clone();
        let variances = cells.means.iter().filter(|(_, mean)| means.contains(mean));
        zeros.extend(variances.map(|(variance, _)| variance));
        cells.write(live, Zero(&zeros));
        let start = cells.read(live);
        Self {
            narrow: Some(Narrow { start, zeros }),
            ..Self::begin(cells, layer)
        }
    }

    /// Reads the cells of `live` after a forward pass, and resets them to their start values.
    pub(crate) fn count<M: Module>(&mut self, micro_batch: usize, live: &M) {
        struct Restore<'a>(&'a Values);

        impl CellMapper for Restore<'_> {
            fn value<const D: usize>(&mut self, id: ParamId, old: Tensor<D>) -> Tensor<D> {
                self.0.get(&id).unwrap_or(old)
            }
        }

        if !self.cells.is_empty() {
            self.after.insert(micro_batch, self.cells.read_row(live));
            if let Some(sizes) = self.sizes.clone() {
                while let Some(row) = self.after.remove(&self.begun.micro_batches) {
                    let samples = sizes[self.begun.micro_batches];
                    self.begun.add(self.wide(row), samples);
                }
            }
            let narrow = self.narrow.as_ref();
            let start = narrow.map_or(&self.start, |narrow| &narrow.start);
            self.cells.write(live, Restore(start));
        }
    }

    /// A row in the type of the model's cells.
    fn wide(&self, row: Tensor<1>) -> Tensor<1> {
        match self.narrow {
            Some(_) => row.cast(DType::F32),
            None => row,
        }
    }

    /// Adds those of further micro-batches, which are counted from `first` on.
    fn extend(&mut self, later: Self, first: usize) {
        debug_assert!(
            later.begun.rows.is_none(),
            "nothing is added up on both sides"
        );
        let device = self.after.values().next().map(Tensor::device);
        let row = |row: Tensor<1>| match &device {
            Some(device) => moved(row, device),
            None => row,
        };
        let rows = later.after.into_iter();
        let rows = rows.map(|(micro_batch, own)| (first + micro_batch, row(own)));
        self.after.extend(rows.collect::<Vec<_>>());
    }

    /// Those of the micro-batches that were counted here, for replicas in other processes: others are −0, so
    /// that a sum over replicas has the bits of each. Then the momenta that are known here, each with the
    /// number of replicas that know it: a replica may have no micro-batch.
    pub(crate) fn to_numbers<M: Module>(
        &self,
        micro_batches: usize,
        live: &M,
        momenta: &Momenta,
    ) -> Vec<f32> {
        let length = self.length(live);
        let mut numbers = vec![-0.0; micro_batches * length];
        for (&index, row) in &self.after {
            let row = row.clone().cast(DType::F32).into_data();
            let place = numbers[index * length..][..length].iter_mut();
            place
                .zip(row.iter::<f32>())
                .for_each(|(place, own)| *place = own);
        }
        // As whole numbers, whose sums are exact.
        for mean in self.means(live) {
            let grains = (momenta.of(mean)).map(|momentum| (momentum / GRAIN).round());
            numbers.extend(grains.map_or([0.0; 2], |grains| [grains as f32, 1.0]));
        }
        numbers
    }

    /// Takes those of all micro-batches and the momenta; returns the numbers that are left.
    pub(crate) fn set_numbers<'a, M: Module>(
        &mut self,
        micro_batches: usize,
        live: &M,
        momenta: &mut Momenta,
        numbers: &'a [f32],
    ) -> &'a [f32] {
        let length = self.length(live);
        let (own, rest) = numbers.split_at(micro_batches * length);
        if length > 0 {
            let device = self.cells.read_row(live).device();
            let rows = own.chunks(length).enumerate();
            let rows = rows.map(|(index, row)| (index, Tensor::from_floats(row, &device)));
            self.after = rows.collect();
        }
        let means = self.means(live);
        let (own, rest) = rest.split_at(2 * means.len());
        for (mean, pair) in means.into_iter().zip(own.chunks(2)) {
            if pair[1] > 0.0 {
                let momentum = f64::from(pair[0] / pair[1]) * GRAIN;
                momenta.found.insert(mean, momentum);
            }
        }
        rest
    }

    /// The means' cells of batch norms, in the order of a visit.
    fn means<M: Module>(&self, live: &M) -> Vec<ParamId> {
        if self.cells.is_empty() {
            return Vec::new();
        }
        let mut find = FindNorms::default();
        live.visit(&mut find);
        find.means
    }

    /// The numbers of a row.
    fn length<M: Module>(&self, live: &M) -> usize {
        match self.cells.is_empty() {
            true => 0,
            false => self.cells.read_row(live).dims()[0],
        }
    }

    /// Their sum, which is not finite if one of them is not.
    pub(crate) fn sum(&self) -> Option<Tensor<1>> {
        let mean = self.begun.rows.iter().map(|[mean, _]| mean);
        let rows = mean.chain(self.after.values()).cloned();
        let sums = rows.map(|row| row.cast(DType::F32).sum());
        sums.reduce(|sum, row| sum + row)
    }

    /// Whether they are neither NaN nor infinite. None has been added up.
    pub(crate) fn are_finite(&self) -> bool {
        self.after.values().all(is_finite)
    }

    /// Writes the statistics of micro-batches of these sizes into the cells that `layer` shares with the
    /// model: moves them, or replaces them by `exact` ones.
    pub(crate) fn commit<M: Module>(
        mut self,
        layer: &M,
        momenta: &mut Momenta,
        sizes: &[usize],
        exact: bool,
    ) {
        self.has_looked(layer, momenta);
        let (begun, rows) = (self.begun.clone(), std::mem::take(&mut self.after));
        self.write((layer, momenta), (begun, rows), (sizes, &self.start), exact);
    }

    /// Moves the cells by the statistics of one mini-batch after another. They have started at zero.
    pub(crate) fn commit_each<M: Module>(
        mut self,
        layer: &M,
        momenta: &mut Momenta,
        mini_batches: &[Vec<usize>],
    ) {
        self.has_looked(layer, momenta);
        let (mut first, from_cells) = (0, Values::new());
        for sizes in mini_batches {
            let later = self.after.split_off(&(first + sizes.len()));
            let own = std::mem::replace(&mut self.after, later).into_iter();
            let own = own.map(|(index, row)| (index - first, row)).collect();
            let all = (Moments::default(), own);
            self.write((layer, momenta), all, (sizes, &from_cells), false);
            first += sizes.len();
        }
    }

    /// If the run has looked for momenta, it was the last.
    fn has_looked<M: Module>(&self, layer: &M, momenta: &mut Momenta) {
        if self.begun.micro_batches + self.after.len() > 1 || self.narrow.is_some() {
            momenta.give_up_others(layer, &self.cells);
        }
    }

    /// Writes cells by these micro-batches, from `start` or else from what they have.
    fn write<M: Module>(
        &self,
        (layer, momenta): (&M, &Momenta),
        (mut all, rows): (Moments, BTreeMap<usize, Tensor<1>>),
        (sizes, start): (&[usize], &Values),
        exact: bool,
    ) {
        for (index, row) in rows {
            all.add(self.wide(row), sizes[index]);
        }
        let Some([mean, squares]) = all.rows else {
            return;
        };
        let sum = Sum {
            is_one: all.micro_batches == 1,
            variance: squares.div_scalar(all.samples as f64),
            mean,
            start,
            narrow: self.narrow.as_ref(),
            means: &self.cells.means,
            momenta,
            exact,
            places: HashMap::new(),
            place: 0,
        };
        self.cells.write(layer, sum);
    }
}

/// Computes the statistics of a mini-batch from those of its micro-batches.
struct Sum<'a> {
    /// Of one micro-batch.
    is_one: bool,
    /// Of the cells after each pass, weighted by samples.
    mean: Tensor<1>,
    variance: Tensor<1>,
    start: &'a Values,
    narrow: Option<&'a Narrow>,
    means: &'a HashMap<ParamId, ParamId>,
    momenta: &'a Momenta,
    /// Whether to replace the cells of norms that train, and nothing else.
    exact: bool,
    /// The columns of each cell that was visited.
    places: HashMap<ParamId, Range<usize>>,
    place: usize,
}

impl Sum<'_> {
    /// The momentum of a cell, if it belongs to a batch norm.
    fn momentum(&self, id: ParamId) -> Option<f64> {
        let mean = self.means.get(&id).unwrap_or(&id);
        self.momenta.of(*mean)
    }

    /// A cell before each forward pass; the model's is `start`.
    fn begun<const D: usize>(&self, id: ParamId, start: &Tensor<D>) -> Tensor<D> {
        let narrow = self.narrow.and_then(|narrow| narrow.start.get(&id));
        narrow.map_or_else(
            || start.clone(),
            |begun: Tensor<D>| begun.cast(start.dtype()),
        )
    }

    /// The momentum of a cell that starts at zero.
    fn momentum_from_zero(&self, id: ParamId) -> Option<f64> {
        self.narrow.filter(|narrow| narrow.zeros.contains(&id))?;
        self.momentum(id)
    }

    /// The mean or the variance of all samples.
    fn exact(&self, id: ParamId, mean: Tensor<1>) -> Option<Tensor<1>> {
        let momentum = self.momentum_from_zero(id)?;
        Some(self.with_spread(id, mean).div_scalar(momentum))
    }

    /// With what the differences between the micro-batches' means add to the variance.
    fn with_spread(&self, id: ParamId, change: Tensor<1>) -> Tensor<1> {
        let spread = || {
            let mean = self.means.get(&id)?;
            let momentum = self.momenta.of(*mean)?;
            let variance = narrowed(&self.variance, self.places.get(mean)?);
            Some(variance.div_scalar(momentum))
        };
        match spread() {
            Some(spread) => change + spread,
            None => change,
        }
    }
}

/// A cell of a row.
fn narrowed(row: &Tensor<1>, place: &Range<usize>) -> Tensor<1> {
    row.clone().narrow(0, place.start, place.len())
}

impl CellMapper for Sum<'_> {
    fn value<const D: usize>(&mut self, id: ParamId, old: Tensor<D>) -> Tensor<D> {
        // Cells are visited in the order in which they were read.
        let place = self.place..self.place + old.shape().num_elements();
        self.place = place.end;
        self.places.insert(id, place.clone());
        let mean = narrowed(&self.mean, &place);
        let start = self.start.get(&id).unwrap_or(old);
        if self.exact {
            let exact = self.exact(id, mean);
            return exact.map_or(start.clone(), |exact| exact.reshape(start.shape()));
        }
        if self.is_one && self.narrow.is_none() {
            return mean.reshape(start.shape());
        }
        // A pass would have left (1 − q) r of the model's cell, but there was nothing in one that starts at zero.
        if let Some(momentum) = self.momentum_from_zero(id) {
            let change = self.with_spread(id, mean).reshape(start.shape());
            return start.mul_scalar(1.0 - momentum) + change;
        }
        // By differences, so that a cell that did not move keeps its bits.
        let change = mean - self.begun(id, &start).reshape([-1]);
        start.clone() + self.with_spread(id, change).reshape(start.shape())
    }
}

/// Added to the cells of means, to see how much of it is left after a forward pass. Large, so that
/// rounding does not matter.
const PROBE: f64 = (1 << 20) as f64;
/// Momenta are rounded to multiples of this, so that they do not depend on the input.
const GRAIN: f64 = 1e-6;

/// Finds the momenta of batch norms that train: these only write to their cells. `forward` runs the
/// layers on copies, with the same input each time, and does not count. A norm whose cell does not move
/// is left out.
pub(crate) fn momenta<M: Module, E>(
    layers: &[(Cells, M)],
    copy: impl Fn(&M) -> M,
    mut forward: impl FnMut(Vec<M>) -> Result<(), E>,
) -> Result<Momenta, E> {
    struct Add<'a> {
        means: &'a HashSet<ParamId>,
        amount: f64,
    }

    impl CellMapper for Add<'_> {
        fn value<const D: usize>(&mut self, id: ParamId, old: Tensor<D>) -> Tensor<D> {
            if self.means.contains(&id) {
                old.add_scalar(self.amount)
            } else {
                old
            }
        }
    }

    let mut run = |amount: f64| {
        let copies: Vec<_> = layers.iter().map(|(_, layer)| copy(layer)).collect();
        for ((cells, _), copy) in layers.iter().zip(&copies) {
            let means = &training_means(copy);
            cells.write(copy, Add { means, amount });
        }
        forward(copies.clone())?;
        let read = layers.iter().zip(&copies);
        Ok(read.map(|((cells, _), copy)| cells.read(copy)).collect())
    };
    let (low, high): (Vec<Values>, Vec<Values>) = (run(0.0)?, run(PROBE)?);
    let mut momenta = Momenta::default();
    for ((_, layer), (low, high)) in layers.iter().zip(low.iter().zip(&high)) {
        for mean in training_means(layer) {
            let pair = low.get(&mean).zip(high.get(&mean));
            let found = pair.and_then(|(low, high)| momentum(low, high));
            (momenta.found).extend(found.map(|momentum| (mean, momentum)));
        }
    }
    Ok(momenta)
}

/// The mean cells of batch norms that train. Frozen ones normalize by their cells.
fn training_means<M: Module>(layer: &M) -> HashSet<ParamId> {
    let mut find = FindNorms::default();
    layer.visit(&mut find);
    find.training_means
}

#[derive(Default)]
struct FindNorms {
    /// For each enclosing field: its name, if it is a batch norm's.
    around: Vec<Option<String>>,
    trains: bool,
    mean: Option<ParamId>,
    cells: Cells,
    means: Vec<ParamId>,
    training_means: HashSet<ParamId>,
}

impl FindNorms {
    fn field(&self) -> Option<&str> {
        self.around.last()?.as_deref()
    }
}

impl ModuleVisitor for FindNorms {
    fn enter_module(&mut self, name: &str, container: &str) {
        let is_norm = container == "Struct:BatchNorm";
        self.around.push(is_norm.then(|| name.to_owned()));
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.around.pop();
    }
    // The flag comes before the cells.
    fn visit_flag(&mut self, flag: &Param<Flag>) {
        if self.field() == Some("training") {
            self.trains = flag.is_enabled();
        }
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            return;
        }
        self.cells.all.insert(param.id);
        match self.field() {
            Some("running_mean") => {
                self.mean = Some(param.id);
                self.means.push(param.id);
                if self.trains {
                    self.training_means.insert(param.id);
                }
            }
            Some("running_var") => {
                (self.cells.means).extend(self.mean.take().map(|mean| (param.id, mean)));
            }
            _ => {}
        }
    }
}

/// A share of 1 − q of `PROBE` is left. `None` if all of it is left, or the result is NaN.
fn momentum(low: Tensor<1>, high: Tensor<1>) -> Option<f64> {
    let left = (high - low).into_data();
    let left: Vec<f64> = left.iter::<f64>().collect();
    let mean = left.iter().sum::<f64>() / left.len() as f64;
    let momentum = ((1.0 - mean / PROBE) / GRAIN).round() * GRAIN;
    (momentum > 0.0).then_some(momentum)
}
