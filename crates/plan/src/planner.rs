//! The best pipeline for a model and a machine.
//!
//! A candidate is a *shape* (how many workers, which schedule, how many micro-batches, what is computed
//! again, which stages have replicas, which device is which worker) and a cut. [`shape`] judges a
//! candidate by simulating a step of it; [`cuts`] finds the best cut of a shape, without simulating
//! those that cannot be better; [`shapes`] lists shapes; this file puts them together.

mod cuts;
mod setup;
mod shape;
mod shapes;
mod verdict;

use std::collections::BTreeMap;

use serde::Serialize;
use stovepipe_schedule::{Recompute, Rule};
use thiserror::Error;

use crate::{CutError, Machine, MemoryUse, OptimizerState, Profile};
use cuts::{Budget, Found};
use shape::{Model, Shape};
use shapes::ShapeRequest;

pub use setup::Setup;
pub use verdict::{RunnerUp, Verdict};

/// What to plan, and among what to choose.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// The model.
    pub profile: &'a Profile,
    /// The devices and links.
    pub machine: &'a Machine,
    /// Samples of a mini-batch. All micro-batches are taken to be as large as the largest.
    pub mini_batch: usize,
    /// What the optimizer keeps.
    pub state: OptimizerState,
    /// Numbers of workers, none more than there are devices.
    pub workers: Vec<usize>,
    /// Schedules. [`Rule::PipeDream`] is left out: it does not give the result of one device.
    pub rules: Vec<Rule>,
    /// Stages of each worker for [`Rule::Interleaved`].
    pub chunks: Vec<usize>,
    /// Numbers of micro-batches, none more than samples in a mini-batch.
    pub micro_batches: Vec<usize>,
    /// What to compute again.
    pub recompute: Vec<Recompute>,
    /// Whether stages may have replicas, which take micro-batches in turn under 1F1B.
    pub replicas: bool,
}

impl<'a> PlanRequest<'a> {
    /// Everything there is to choose from, but for replicas: up to as many workers as there are devices,
    /// all synchronous schedules, and powers of two and divisors of the mini-batch as numbers of
    /// micro-batches.
    ///
    /// ```
    /// use stovepipe_plan::{LayerProfile, Machine, PlanRequest, Profile};
    ///
    /// let layer = LayerProfile { forward: 1.0, backward: 2.0, ..LayerProfile::default() };
    /// let profile = Profile { samples: 1, input: 0, layers: vec![layer; 8] };
    /// let machine = Machine::uniform(2);
    /// let plan = PlanRequest::new(&profile, &machine, 16).plan()?;
    /// assert_eq!(plan.best.workers(), 2);
    /// assert_eq!(plan.best.micro_batches, 16);
    /// # Ok::<(), stovepipe_plan::PlanError>(())
    /// ```
    #[must_use]
    pub fn new(profile: &'a Profile, machine: &'a Machine, mini_batch: usize) -> Self {
        let most = machine.devices.len().min(profile.layers.len());
        Self {
            profile,
            machine,
            mini_batch,
            state: OptimizerState::default(),
            workers: shapes::usual_workers(most),
            rules: Rule::ALL
                .into_iter()
                .filter(|&rule| rule != Rule::PipeDream)
                .collect(),
            chunks: vec![2, 3, 4],
            micro_batches: usual_micro_batches(mini_batch),
            // Of equals, the one that computes least.
            recompute: vec![Recompute::Never, Recompute::ExceptLast, Recompute::Always],
            replicas: false,
        }
    }
}

/// The largest number of micro-batches that is tried unless it is asked for.
const MOST_USUAL: usize = 256;

/// Numbers that divide the mini-batch, and powers of two.
fn usual_micro_batches(mini_batch: usize) -> Vec<usize> {
    let most = mini_batch.min(MOST_USUAL);
    let is_usual = |&count: &usize| mini_batch.is_multiple_of(count) || count.is_power_of_two();
    (1..=most).filter(is_usual).collect()
}

/// What can be said of a pipeline before it runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Candidate {
    /// The schedule.
    pub schedule: Rule,
    /// Stages of each worker.
    pub chunks: usize,
    /// Micro-batches of a mini-batch.
    pub micro_batches: usize,
    /// What is computed again.
    pub recompute: Recompute,
    /// Replicas of each stage.
    pub replicas: Vec<usize>,
    /// The device of each worker, by its place in the machine.
    pub devices: Vec<usize>,
    /// What it comes to.
    #[serde(flatten)]
    pub forecast: Forecast,
}

/// What can be said of a cut before it runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Forecast {
    /// Layers of each stage.
    pub balance: Vec<usize>,
    /// Seconds of a step, from the first pass of any worker to the last of any.
    pub step_time: f64,
    /// The share of time in which workers wait.
    pub bubble: f64,
    /// For each worker, the share of time in which it works.
    pub utilisation: Vec<f64>,
    /// What each worker keeps in memory at most.
    pub memory: Vec<MemoryUse>,
    /// Seconds of passes that are computed a second time, of the worker with most of them.
    pub recomputed: f64,
}

impl Candidate {
    fn new(request: ShapeRequest, forecast: Forecast) -> Self {
        Self {
            schedule: request.rule,
            chunks: request.chunks,
            micro_batches: request.micro_batches,
            recompute: request.recompute,
            replicas: request.replicas,
            devices: request.devices,
            forecast,
        }
    }

    /// The number of workers.
    ///
    /// ```
    /// # use stovepipe_plan::{LayerProfile, Machine, PlanRequest, Profile};
    /// # let layer = LayerProfile { forward: 1.0, backward: 2.0, ..LayerProfile::default() };
    /// # let profile = Profile { samples: 1, input: 0, layers: vec![layer; 3] };
    /// let machine = Machine::uniform(3);
    /// assert_eq!(PlanRequest::new(&profile, &machine, 4).plan()?.best.workers(), 3);
    /// # Ok::<(), stovepipe_plan::PlanError>(())
    /// ```
    #[must_use]
    pub fn workers(&self) -> usize {
        self.devices.len()
    }
}

/// The best pipeline that was found, and what it was chosen from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The fastest candidate that fits.
    pub best: Candidate,
    /// The best of each other schedule and recompute mode, the fastest first.
    pub runners_up: Vec<RunnerUp>,
    /// Whether no other candidate among those asked for can be faster: every cut of every shape was weighed.
    /// If not, there were too many, and some shapes were tried with few cuts.
    pub exact: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The profile has no layers, or a cost is no number.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The machine has no devices, or no number of workers was given.
    #[error("there is nothing to plan for: no {0}")]
    Nothing(&'static str),
    /// There are more workers than layers.
    #[error("{workers} workers are more than the model's {layers} layers: plan for fewer")]
    TooManyWorkers {
        /// Workers asked for.
        workers: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// There are more workers than devices.
    #[error("{workers} workers are more than the machine's {devices} devices")]
    TooFewDevices {
        /// Workers asked for.
        workers: usize,
        /// Devices there are.
        devices: usize,
    },
    /// The profiles are not those of one model on the machine's devices.
    #[error(
        "{profiles} profiles are not those of one model on {devices} devices: give one for all of them, or one \
         for each, with the same layers"
    )]
    Profiles {
        /// Profiles given.
        profiles: usize,
        /// Devices there are.
        devices: usize,
    },
    /// There are more micro-batches than samples, or none.
    #[error(
        "a mini-batch of {mini_batch} samples cannot be cut into {micro_batches} micro-batches"
    )]
    MicroBatches {
        /// Samples.
        mini_batch: usize,
        /// Micro-batches asked for.
        micro_batches: usize,
    },
    /// The layers of each stage are not those of the model.
    #[error("{balance:?} layers are no cut of {layers} layers into {stages} stages")]
    Balance {
        /// Layers of each stage.
        balance: Vec<usize>,
        /// Stages of the schedule.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Nothing fits the devices.
    #[error(
        "no pipeline fits: the one that comes closest needs {needs} bytes on worker {worker}, whose \
         device has {has}; more or larger devices, smaller mini-batches or another optimizer would help"
    )]
    TooLarge {
        /// The worker with least room.
        worker: usize,
        /// Bytes that it needs.
        needs: u64,
        /// Bytes that it has.
        has: u64,
    },
    /// A cost is out of range.
    #[error(transparent)]
    Cost(#[from] stovepipe_schedule::CostError),
    /// A schedule is not to be had.
    #[error(transparent)]
    Schedule(#[from] stovepipe_schedule::ScheduleError),
}

impl PlanRequest<'_> {
    /// Finds the fastest pipeline that fits. Each candidate is judged by simulating a step.
    ///
    /// Of every shape that was asked for, all cuts are weighed that a lower bound of their time does
    /// not rule out, as long as there are not too many of them; see [`Plan::exact`].
    ///
    /// # Errors
    ///
    /// If there is nothing to choose from, more workers than layers or devices are asked for, more
    /// micro-batches than samples, a cost is no number, or no candidate fits.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.check()?;
        let mut budget = Budget::new();
        let coarse = coarse(self.profile);
        let model = |&count: &usize| (count, self.model(&coarse.profile, count));
        let models: BTreeMap<_, _> = self.micro_batches.iter().map(model).collect();
        let mut shapes: Vec<_> = (models.iter())
            .flat_map(|(&count, model)| shapes::shapes(self, count, model.layers()))
            .map(|shape| (shape.bound(&models[&shape.micro_batches]), shape))
            .collect();
        // The most promising first: the others may then be ruled out at once.
        shapes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut found = BTreeMap::<(Rule, u8), Found<ShapeRequest>>::new();
        for (bound, request) in shapes {
            let group = found.entry(request.group()).or_default();
            if group.is_hopeless(bound) {
                continue;
            }
            let schedule = request.schedule()?;
            let model = &models[&request.micro_batches];
            let shape = Shape::new(model, &request.devices, &schedule, request.recompute);
            cuts::search(&shape, &request, group, &mut budget)?;
        }
        let (mut fitting, mut misfits) = (Vec::new(), Vec::new());
        for group in found.into_values() {
            match (group.fitting, group.misfit) {
                (Some(found), _) => fitting.push(self.refine(found, &coarse)?),
                (None, Some((request, forecast, _))) => {
                    misfits.push(self.refine((request, forecast), &coarse)?);
                }
                (None, None) => {}
            }
        }
        let exact = budget.is_exact() && coarse.is_whole();
        verdict::conclude(self.machine, fitting, misfits, exact)
    }

    fn model(&self, profile: &Profile, micro_batches: usize) -> Model<'_> {
        let profile = profile.for_samples(self.mini_batch.div_ceil(micro_batches));
        Model::new([profile], self.machine, self.state)
    }

    fn check(&self) -> Result<(), PlanError> {
        let (layers, devices) = (self.profile.layers.len(), self.machine.devices.len());
        let nothing = [
            ("layers", layers == 0),
            ("devices", devices == 0),
            ("samples", self.mini_batch == 0),
            ("workers", self.workers.is_empty()),
            ("schedules", self.rules.is_empty()),
            ("micro-batches", self.micro_batches.is_empty()),
            ("recompute modes", self.recompute.is_empty()),
        ];
        if let Some((what, _)) = nothing.into_iter().find(|(_, is_missing)| *is_missing) {
            return Err(PlanError::Nothing(what));
        }
        for &workers in &self.workers {
            match workers {
                0 => return Err(PlanError::Nothing("workers")),
                _ if workers > devices => {
                    return Err(PlanError::TooFewDevices { workers, devices });
                }
                _ if workers > layers && !self.replicas => {
                    return Err(PlanError::TooManyWorkers { workers, layers });
                }
                _ => {}
            }
        }
        let mini_batch = self.mini_batch;
        match (self.micro_batches.iter()).find(|&&m| m == 0 || m > mini_batch) {
            Some(&micro_batches) => Err(PlanError::MicroBatches {
                mini_batch,
                micro_batches,
            }),
            None => Ok(()),
        }
    }

    /// Cuts the model itself as the coarse one was cut, or better.
    fn refine(
        &self,
        (request, forecast): (ShapeRequest, Forecast),
        coarse: &Coarse,
    ) -> Result<Candidate, PlanError> {
        if coarse.is_whole() {
            return Ok(Candidate::new(request, forecast));
        }
        let model = self.model(self.profile, request.micro_batches);
        let schedule = request.schedule()?;
        let shape = Shape::new(&model, &request.devices, &schedule, request.recompute);
        let same = shape.forecast(&coarse.balance(&forecast.balance))?;
        let finer = shape.forecast(&shape.balanced_cut()?)?;
        let fits = |forecast| shape.misfit(forecast).is_none();
        let is_better = finer.step_time < same.step_time && fits(&finer) >= fits(&same);
        let forecast = if is_better { finer } else { same };
        Ok(Candidate::new(request, forecast))
    }
}

/// A chain with fewer layers: neighbours that cost little are one.
struct Coarse {
    profile: Profile,
    /// Layers of the model that each is made of.
    counts: Vec<usize>,
}

/// More layers than this are joined while shapes are compared.
const MOST_LAYERS: usize = 512;

impl Coarse {
    fn is_whole(&self) -> bool {
        self.counts.iter().all(|&count| count == 1)
    }

    /// The same cut of the model itself.
    fn balance(&self, balance: &[usize]) -> Vec<usize> {
        let mut counts = self.counts.iter();
        let stages = balance.iter();
        stages
            .map(|&count| counts.by_ref().take(count).sum())
            .collect()
    }
}

fn coarse(profile: &Profile) -> Coarse {
    let layers = &profile.layers;
    let cost = |index: usize| layers[index].forward + layers[index].backward;
    let total: f64 = (0..layers.len()).map(cost).sum();
    let share = match layers.len() > MOST_LAYERS {
        true => total / MOST_LAYERS as f64,
        false => -1.0, // nothing is joined
    };
    let mut joined: Vec<crate::LayerProfile> = Vec::new();
    let mut counts: Vec<usize> = Vec::new();
    let most = layers.len().div_ceil(MOST_LAYERS);
    for layer in layers {
        match (joined.last_mut(), counts.last_mut()) {
            (Some(last), Some(count))
                if *count < 2 * most
                    && last.forward + last.backward + layer.forward + layer.backward <= share =>
            {
                *last = last.joined_with(layer);
                *count += 1;
            }
            _ => {
                joined.push(layer.clone());
                counts.push(1);
            }
        }
    }
    Coarse {
        profile: Profile {
            samples: profile.samples,
            input: profile.input,
            layers: joined,
        },
        counts,
    }
}
