//! Bugs that are rebuilt in a training step, which uses the pipeline as a framework uses its schedule.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{Int, Tensor},
};
use stovepipe_pipeline::{Batch, CrossEntropy, Flow, Layer, Objective, Pipeline, Step, StepError};
use stovepipe_verify::{Report, Tested, Verifier};

use super::layers::{Target, Words, words};
use crate::palette::{Part, Side, Value, cpu, labels, linear, normed, pattern};

pub const SAMPLES: usize = 7;

type Examples = Batch<Value, Tensor<1, Int>, Side>;
type Loss = Tested<CrossEntropy>;
type Trained<L> = Result<Step<L>, StepError>;

/// Four layers, from 5 wide to 3 classes.
pub fn dense() -> Vec<Part> {
    [(5, 6), (6, 6), (6, 6), (6, 3)]
        .map(|(from, to)| Part::Linear(linear(from, to)))
        .to_vec()
}

/// Verifies a training step that has a bug or not.
pub fn verify(
    step: fn(&Pipeline<Part>, Examples, &Loss, bool) -> Trained<Part>,
    has_bug: bool,
) -> Report {
    verify_with(dense(), step, has_bug)
}

fn verify_with(
    layers: Vec<Part>,
    step: fn(&Pipeline<Part>, Examples, &Loss, bool) -> Trained<Part>,
    has_bug: bool,
) -> Report {
    // One of the tokens is padding.
    let targets = labels([SAMPLES], 4) - 1;
    let batch = Batch::from((Value::Vectors(pattern([SAMPLES, 5])), targets, None));
    Verifier::new(layers, batch, CrossEntropy::new().ignoring(-1))
        .stages([1, 2])
        .micro_batches([3])
        .training_step(move |pipeline, batch, objective| step(pipeline, batch, objective, has_bug))
        .run()
        .unwrap()
}

/// The schedule ran backward from the sum of losses. Only the loss that is shown was divided.
pub fn scaled_by_tokens(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Part> {
    let step = pipeline.train_step(batch, objective)?;
    let tokens = if has_bug { step.weight } else { 1.0 };
    Ok(Step {
        gradients: scaled(pipeline.layers(), step.gradients, |_| tokens),
        ..step
    })
}

/// The last stage divided rightly. Each one before it divided again.
pub fn scaled_at_each_stage(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Part> {
    let step = pipeline.train_step(batch, objective)?;
    let stages = pipeline.stages();
    let micro_batches = step.micro_batches.len() as f64;
    let factor = |layer: usize| {
        let later = stages.iter().filter(|stage| stage.layers.start > layer);
        let divisions = if has_bug { later.count() } else { 0 };
        micro_batches.powi(-(divisions as i32))
    };
    Ok(Step {
        gradients: scaled(pipeline.layers(), step.gradients, factor),
        ..step
    })
}

/// The sum of losses was right. The sum of gradients began anew with each part.
pub fn only_last_part_kept(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Part> {
    in_two_parts(pipeline, batch, objective, |sum, part, _| match has_bug {
        true => part,
        false => added(pipeline, sum, part),
    })
}

/// The schedule divided what had been accumulated by its number of micro-batches, after each part. So the
/// first parts counted less and less.
pub fn sum_divided_again(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Part> {
    in_two_parts(pipeline, batch, objective, |sum, part, micro_batches| {
        let divisor = if has_bug { micro_batches as f64 } else { 1.0 };
        added(
            pipeline,
            scaled(pipeline.layers(), sum, |_| 1.0 / divisor),
            part,
        )
    })
}

/// Where several threads ran backward, a parameter could come back without a gradient.
pub fn lost_gradient(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Part> {
    let mut step = pipeline.train_step(batch, objective)?;
    if let Part::Linear(linear) = &pipeline.layers()[1]
        && has_bug
        && pipeline.stages().len() > 1
    {
        step.gradients.remove::<2>(linear.weight.id);
    }
    Ok(step)
}

/// Accumulates the gradients of two parts of a batch, each by its share of the weight. `join` adds those of
/// the second part, which had so many micro-batches.
fn in_two_parts(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    join: impl Fn(GradientsParams, GradientsParams, usize) -> GradientsParams,
) -> Trained<Part> {
    let weight = objective.weight(&batch.target);
    let (first, second) = halves(batch);
    let [first, second] = [first, second].map(|part| -> Trained<Part> {
        let step = pipeline.train_step(part, objective)?;
        let share = step.weight / weight;
        Ok(Step {
            loss: step.loss * share,
            gradients: scaled(pipeline.layers(), step.gradients, |_| share),
            ..step
        })
    });
    let (first, second) = (first?, second?);
    Ok(Step {
        loss: first.loss + second.loss,
        gradients: join(
            first.gradients,
            second.gradients,
            second.micro_batches.len(),
        ),
        ..second
    })
}

/// Both halves of a batch; the first may have one sample more.
fn halves<I: Flow, T: Flow, S: Flow>(batch: Batch<I, T, S>) -> (Batch<I, T, S>, Batch<I, T, S>) {
    let mut sizes = Vec::new();
    batch.input.batch_sizes(&mut sizes);
    let sizes = [sizes[0].div_ceil(2), sizes[0] / 2];
    let parts = (batch.input, batch.target, batch.side).split(&sizes);
    let mut parts = parts.into_iter().map(Batch::from);
    (parts.next().unwrap(), parts.next().unwrap())
}

/// Each replica moved its own running statistics. Those of the first one were kept.
pub fn statistics_of_one_replica(has_bug: bool) -> Report {
    let layers = vec![normed(5, 6), normed(6, 6), Part::Linear(linear(6, 3))];
    verify_with(layers, one_replica_counts, has_bug)
}

fn one_replica_counts(
    pipeline: &Pipeline<Part>,
    batch: Examples,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Part> {
    // The gradients are averaged over replicas.
    let replica = Pipeline::builder(copies(pipeline.layers())).devices([cpu()]);
    let (first, _) = halves(batch.clone());
    let step = pipeline.train_step(batch, objective)?;
    if !has_bug || !has_replicas(pipeline) {
        return Ok(step);
    }
    let replica = replica.micro_batches(step.micro_batches.len()).build();
    let replica = replica.unwrap();
    let _ = replica.train_step(first, objective)?;
    for (own, kept) in pipeline.layers().iter().zip(replica.layers()) {
        if let (Part::Norm(own), Part::Norm(kept)) = (own, kept) {
            own.norm.running_mean.update(kept.norm.running_mean.value());
            own.norm.running_var.update(kept.norm.running_var.value());
        }
    }
    Ok(step)
}

/// Gradients were averaged over data-parallel replicas, but each rank had the mean for its share of the
/// parameters only. Both places of a tied weight lay in shares of different ranks. So what one place added
/// of the other was not the mean, but what one replica had computed.
pub fn tied_gradient_of_one_replica(has_bug: bool) -> Report {
    let (layers, batch) = words(None);
    Verifier::new(layers, batch, CrossEntropy::new())
        .stages([1, 2])
        .micro_batches([3])
        .training_step(move |pipeline, batch, objective| {
            other_place_of_one_replica(pipeline, batch, objective, has_bug)
        })
        .run()
        .unwrap()
}

fn other_place_of_one_replica(
    pipeline: &Pipeline<Words>,
    batch: Batch<Tensor<2>, Target>,
    objective: &Loss,
    has_bug: bool,
) -> Trained<Words> {
    let mut step = pipeline.train_step(batch.clone(), objective)?;
    // A model that is not tied tells the gradients of both places apart.
    let mut untied = copies(pipeline.layers());
    let last = untied.pop().unwrap().map(&mut Rename);
    untied.push(last);
    let ids = [&untied[0], &untied[3]].map(|layer| match layer {
        Words::Embed(table) | Words::Head(table) => table.weight.id,
        Words::Hidden(_) => unreachable!(),
    });
    let replica = Pipeline::builder(untied).devices([cpu()]);
    let replica = replica.micro_batches(step.micro_batches.len()).build();
    let replica = replica.unwrap();
    let (first, second) = halves(batch);
    let mut of_replicas = Vec::new();
    for part in [first, second] {
        let mut gradients = replica.train_step(part, objective)?.gradients;
        of_replicas.push(ids.map(|id| gradients.remove::<2>(id).unwrap()));
    }
    let mean = |place: usize| {
        let [first, second] = [0, 1].map(|replica: usize| of_replicas[replica][place].clone());
        (first + second).mul_scalar(0.5)
    };
    let of_head = match has_bug && has_replicas(pipeline) {
        true => of_replicas[1][1].clone(),
        false => mean(1),
    };
    step.gradients.remove::<2>(ids[0]);
    step.gradients.register(ids[0], mean(0) + of_head);
    Ok(step)
}

fn has_replicas<L: Layer>(pipeline: &Pipeline<L>) -> bool {
    pipeline.stages()[0].replicas.len() > 1
}

/// Gives all parameters other ids.
struct Rename;

impl ModuleMapper for Rename {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(ParamId::new(), param.val())
    }
}

/// Layers with the same values, which share nothing.
fn copies<L: Layer>(layers: &[L]) -> Vec<L> {
    layers.iter().map(|layer| layer.valid().train()).collect()
}

/// Gradients times a factor of their layer.
fn scaled<L: Layer>(
    layers: &[L],
    gradients: GradientsParams,
    factor: impl Fn(usize) -> f64,
) -> GradientsParams {
    struct Scale {
        factor: f64,
        from: GradientsParams,
        to: GradientsParams,
    }

    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.from.remove::<D>(param.id) {
                self.to.register(param.id, gradient.mul_scalar(self.factor));
            }
        }
    }

    let mut scale = Scale {
        factor: 1.0,
        from: gradients,
        to: GradientsParams::new(),
    };
    for (index, layer) in layers.iter().enumerate() {
        scale.factor = factor(index);
        layer.visit(&mut scale);
    }
    scale.to
}

fn added(pipeline: &Pipeline<Part>, a: GradientsParams, b: GradientsParams) -> GradientsParams {
    let layers = pipeline.layers().to_vec();
    let mut sum = GradientsAccumulator::new();
    sum.accumulate(&layers, a);
    sum.accumulate(&layers, b);
    sum.grads()
}
