//! What the stages get for a step, and how their results are combined.

use std::{collections::HashMap, ops::Range, sync::Arc};

use stovepipe_comm::Terms;

use crate::{
    api::{
        batch::{self, Batch, Inputs},
        error::{BoxedError, StepError},
        objective::Objective,
        pipeline::Pipeline,
    },
    engine::{
        links::Links,
        panic::caught,
        parts::{MicroBatchLoss, OutputUse, Part, Parts},
        report::StageReport,
        seats::{Seat, Turns},
        stage::{StagePlacement, StageTask, Training},
        step::StepResult,
        tape::{Head, LossAndScores},
        values,
    },
    model::{flow::Flow, flows, keyed_rng::StepKey, layer::Layer, parameters::is_trainable},
};

/// What stages need of a mini-batch, before each takes its own.
pub(crate) struct Parted<L: Layer> {
    /// By micro-batch of the mini-batch.
    inputs: HashMap<usize, L::Input>,
    side: Vec<L::Side>,
    samples: Arc<[Range<usize>]>,
    key: Option<StepKey>,
}

/// The inputs and the side inputs of a mini-batch.
#[derive(Clone)]
pub(crate) enum StepInputs<L: Layer> {
    /// Of all samples: they are split when they are used, so that nothing holds them twice.
    Whole(Inputs<L::Input, L::Side>),
    /// Of each micro-batch.
    Own(Vec<L::Input>, Vec<L::Side>),
}

/// A mini-batch as micro-batches.
pub(crate) struct SplitBatch<L: Layer, T> {
    /// The samples of each.
    pub(crate) sizes: Vec<usize>,
    pub(crate) inputs: StepInputs<L>,
    pub(crate) targets: Vec<T>,
    /// What the sum of losses is divided by.
    pub(crate) weight: f64,
}

impl<L: Layer, T: Flow> SplitBatch<L, T> {
    /// Splits a batch, unless it brings its own micro-batches.
    pub(crate) fn new(
        batch: Batch<L::Input, T, L::Side>,
        micro_batches: usize,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Self, StepError> {
        if batch.others.is_empty() {
            let samples = batch::samples(&batch.input)?;
            let sizes = batch::even_parts(samples, micro_batches);
            return Ok(Self {
                weight: weight_of(objective, &batch.target)?,
                targets: batch::split(batch.target, &sizes, "target")?,
                inputs: StepInputs::Whole(Inputs::from((batch.input, batch.side))),
                sizes,
            });
        }
        let first = (batch.input, batch.target, batch.side);
        let (mut inputs, mut sides, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sizes, mut weight) = (Vec::new(), 0.0);
        for (input, target, side) in [first].into_iter().chain(batch.others) {
            let size = [batch::samples(&input)?];
            weight += weight_or_none(objective, &target)?;
            inputs.extend(batch::split(input, &size, "input")?);
            targets.extend(batch::split(target, &size, "target")?);
            sides.extend(batch::split(side, &size, "side input")?);
            sizes.extend(size);
        }
        Ok(Self {
            sizes,
            inputs: StepInputs::Own(inputs, sides),
            targets,
            weight: check_weight(weight)?,
        })
    }
}

impl<L: Layer> Parted<L> {
    pub(crate) fn new(
        inputs: StepInputs<L>,
        sizes: &[usize],
        key: Option<StepKey>,
    ) -> Result<Self, StepError> {
        let (inputs, side) = match inputs {
            StepInputs::Own(inputs, side) => (inputs, side),
            StepInputs::Whole(Inputs { input, side }) => {
                let inputs = batch::split(input, sizes, "input")?;
                (inputs, batch::split(side, sizes, "side input")?)
            }
        };
        Ok(Self {
            inputs: inputs.into_iter().enumerate().collect(),
            side,
            samples: ranges(sizes).collect(),
            key,
        })
    }

    /// The part of a seat. The mini-batch's first micro-batch is the `first` of all.
    pub(crate) fn of(
        &mut self,
        (seat, stage): (Seat, &StagePlacement),
        (turns, first): (&Turns, usize),
        outputs: OutputUse<L>,
    ) -> Result<Part<L>, StepError> {
        let is_own = |index: usize| seat.stage == 0 && turns.has(seat, first + index);
        let inputs = self.inputs.extract_if(|&index, _| is_own(index));
        let inputs = inputs.map(|(index, input)| Ok((index, ahead(input, stage)?)));
        let side = self.side.iter().map(|side| ahead(side.clone(), stage));
        Ok(Part {
            inputs: inputs.collect::<Result<_, StepError>>()?,
            side: side.collect::<Result<_, _>>()?,
            samples: self.samples.clone(),
            outputs,
            key: self.key.clone(),
        })
    }
}

/// Copies to a stage's device what lies on another GPU, before the step: a worker would have to wait until
/// that GPU has done all that is queued there. What lies in the host's memory, the worker copies when it
/// needs it.
fn ahead<F: Flow>(value: F, stage: &StagePlacement) -> Result<F, StepError> {
    let copied = caught(|| values::from_gpus(value, &stage.device).map_err(BoxedError::from));
    let copied = copied.map_err(BoxedError::from).flatten();
    copied.map_err(|source| StepError::Device {
        stage: stage.index,
        device: stage.device_name.clone(),
        source,
    })
}

impl<L: Layer> Pipeline<L> {
    /// The task of each seat of this process; without `training`, it runs forward as in evaluation. `turns`
    /// says which replica takes which micro-batch.
    pub(crate) fn tasks(
        &self,
        inputs: StepInputs<L>,
        (sizes, turns): (&[usize], &Turns),
        training: Option<&Arc<Training>>,
        outputs: impl Fn(&StagePlacement) -> Result<OutputUse<L>, StepError>,
    ) -> Result<Vec<StageTask<L>>, StepError> {
        if self.layers().is_empty() {
            return Err(StepError::LayersLost);
        }
        let key = training.map(|_| self.step_key(0));
        let mut parted = Parted::new(inputs, sizes, key)?;
        let parts = |seat: Seat, stage: &StagePlacement| {
            let part = parted.of((seat, stage), (turns, 0), outputs(stage)?)?;
            Ok(Parts::one(part))
        };
        let mut tasks = self.seat_tasks((turns, 1), training, parts)?;
        let sizes = Arc::<[usize]>::from(sizes);
        for task in &mut tasks {
            task.sizes = Some(sizes.clone());
        }
        Ok(tasks)
    }

    /// The first layer of this process that has something to train, or the number of layers.
    pub(crate) fn trainable_from(&self) -> usize {
        let layers = self.layers();
        let is_trained =
            |&index: &usize| self.engine.is_own_layer(index) && is_trainable(&layers[index]);
        (0..layers.len()).find(is_trained).unwrap_or(layers.len())
    }

    /// What all processes must agree on before a training call.
    pub(crate) fn call_terms(&self, call: &str) -> Terms {
        let term = |name: &str, value: String| (name.to_owned(), value);
        vec![
            term("the call", call.to_owned()),
            term("the step", self.steps().to_string()),
            term(
                "the finished share of the training",
                self.progress().to_string(),
            ),
        ]
    }

    /// The key of a step's random numbers, so many steps from now.
    pub(crate) fn step_key(&self, later: u64) -> StepKey {
        StepKey {
            seed: self.engine.seed,
            step: self.steps() + later,
            progress: self.progress(),
        }
    }

    /// The task of each seat of this process, for so many mini-batches.
    pub(crate) fn seat_tasks(
        &self,
        (turns, mini_batches): (&Turns, usize),
        training: Option<&Arc<Training>>,
        mut parts: impl FnMut(Seat, &StagePlacement) -> Result<Parts<L>, StepError>,
    ) -> Result<Vec<StageTask<L>>, StepError> {
        let engine = &self.engine;
        let skips = engine.stages.iter().map(|stage| stage.skips.clone());
        let skips: Vec<_> = skips.collect();
        let trainable_from = training.map_or(usize::MAX, |training| training.trainable_from);
        let ways = (&engine.transfers, &*engine.processes);
        let links = Links::of_seats((engine.seats(), turns), &skips, trainable_from, ways);
        let mut reductions: Vec<_> = (0..mini_batches)
            .map(|_| engine.reducers.of_run())
            .collect();
        let task = |(seat, links): (Seat, _)| {
            let stage = engine.placement(seat);
            let replicas = engine.seats().of_stage(seat.stage).len();
            let home = &engine.stages[seat.stage].device;
            let of_mini_batches = reductions.iter_mut().filter_map(|reductions| {
                training.and_then(|_| reductions.of(seat, replicas, [&stage.device, home]))
            });
            Ok(StageTask {
                run: 0, // when it begins
                seat,
                layers: self.layers_at(seat),
                links,
                reductions: of_mini_batches.collect(),
                parts: parts(seat, &stage)?,
                micro_batches: turns.0[seat.stage].len(),
                sizes: None,
                stage,
                shared: (engine.shared.clone()).filter(|_| engine.home(seat.stage) == Some(seat)), // once a process
                dtype: engine.precision.cast(),
                training: training.cloned(),
                updates: None,
                stored: None,
            })
        };
        let own = (engine.seats().all().zip(links))
            .filter(|(seat, _)| engine.processes.is_own(seat.worker));
        own.map(task).collect()
    }

    /// The layers of a seat's stage, copied if they are on another device.
    fn layers_at(&self, seat: Seat) -> Vec<L> {
        let owner = &self.engine.stages[seat.stage];
        let device = self.engine.devices[seat.worker].device.clone().inner();
        let own = self.layers_of(owner).iter().cloned();
        match device == owner.device {
            true => own.collect(),
            false => own.map(|layer| layer.fork(&device)).collect(),
        }
    }
}

/// The loss of a micro-batch on a stage, as a share of the mini-batch's mean, and its scores.
pub(crate) fn loss_on<L: Layer, T: Flow>(
    stage: &StagePlacement,
    objective: &impl Objective<L::Output, T>,
    targets: &[T],
    weight: f64,
) -> Result<MicroBatchLoss<L>, StepError> {
    let targets = targets.iter().map(|target| ahead(target.clone(), stage));
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let (objective, device) = (objective.clone(), stage.device.clone());
    Ok(Box::new(move |micro_batch, head, output| {
        let target = flows::to_device(targets[micro_batch].clone(), &device);
        let output = values::widened(output);
        let (loss, scores) = match head {
            Head::Main => objective.loss_and_scores(output, target),
            Head::Auxiliary => (objective.auxiliary_loss(output, target), None),
        };
        LossAndScores {
            loss: loss.div_scalar(weight),
            scores,
        }
    }))
}

/// The auxiliary and the main losses of a mini-batch, added in the order of micro-batches.
pub(crate) fn sum_losses(stages: &[StageReport], micro_batches: Range<usize>) -> (f64, f64) {
    let sum = |micro_batch| {
        let of = |losses: &HashMap<usize, f64>| losses.get(&micro_batch).copied().unwrap_or(0.0);
        let auxiliary: f64 = stages.iter().map(|stage| of(&stage.auxiliary)).sum();
        let main: f64 = stages.iter().map(|stage| of(&stage.losses)).sum();
        (auxiliary, main)
    };
    let sums = micro_batches.map(sum);
    sums.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d))
}

/// The scores of a mini-batch, added in the order of micro-batches.
pub(crate) fn sum_scores(stages: &[StageReport], micro_batches: Range<usize>) -> Vec<f64> {
    let mut sums = Vec::new();
    let scores = stages.last().map(|stage| &stage.scores);
    for scores in micro_batches.filter_map(|micro_batch| scores?.get(&micro_batch)) {
        sums.resize(scores.len().max(sums.len()), 0.0);
        for (sum, score) in sums.iter_mut().zip(scores) {
            *sum += score;
        }
    }
    sums
}

/// The weight of a mini-batch.
fn weight_of<O, T>(objective: &impl Objective<O, T>, target: &T) -> Result<f64, StepError> {
    let weight = weight_or_none(objective, target)?;
    check_weight(weight)
}

/// The weight of a part of a mini-batch, which may be 0: all of it may be padding.
fn weight_or_none<O, T>(objective: &impl Objective<O, T>, target: &T) -> Result<f64, StepError> {
    caught(|| objective.weight(target)).map_err(StepError::panicked("objective's weight"))
}

fn check_weight(weight: f64) -> Result<f64, StepError> {
    let is_usable = weight.is_finite() && weight > 0.0;
    is_usable
        .then_some(weight)
        .ok_or(StepError::NoWeight(weight))
}

/// The outputs that the last stage kept in this process, by micro-batch.
pub(crate) fn own_outputs<L: Layer>(result: StepResult<L>) -> HashMap<usize, L::Output> {
    let last = result.stages.into_iter().last();
    let last = last.filter(|last| last.seat.stage + 1 == result.reports.len());
    last.map(|last| last.outputs).unwrap_or_default()
}

/// Joins the outputs of all micro-batches.
pub(crate) fn join_outputs<O: Flow>(
    mut outputs: HashMap<usize, O>,
    micro_batches: usize,
) -> Result<O, StepError> {
    let parts = (0..micro_batches).map(|micro_batch| outputs.remove(&micro_batch));
    let parts: Option<Vec<_>> = parts.collect();
    let joined = parts.and_then(values::join);
    joined.ok_or(StepError::UnlikeOutputs)
}

/// Consecutive ranges of these sizes.
pub(crate) fn ranges(sizes: &[usize]) -> impl Iterator<Item = Range<usize>> {
    sizes.iter().scan(0, |start, &size| {
        *start += size;
        Some(*start - size..*start)
    })
}

/// The sizes of micro-batches, which all processes must agree on.
pub(crate) fn sizes_term(sizes: &[usize]) -> (String, String) {
    (
        "the samples of each micro-batch".to_owned(),
        format!("{sizes:?}"),
    )
}
