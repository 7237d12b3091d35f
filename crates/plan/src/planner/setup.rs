//! A schedule for a model on a machine.

use stovepipe_schedule::{Costs, Recompute, Schedule, WeightPolicy};

use super::{
    Forecast, PlanError,
    choices::Choices,
    cuts::{self, Budget, Found},
    shape::{Mode, ProfiledModel, Shape},
};
use crate::{CutError, Machine, OptimizerState, Profile};

/// Everything but the cut: the model, where it runs, in which order, and what is recomputed.
///
/// ```
/// use stovepipe_plan::{BUCKET, LayerProfile, Machine, OptimizerState, Profile, Setup};
/// use stovepipe_schedule::{GPipe, Recompute, Scheduler, WeightPolicy};
///
/// let layer = |forward, backward| LayerProfile { forward, backward, ..LayerProfile::default() };
/// let layers = vec![layer(1.0, 2.0), layer(1.0, 2.0), layer(2.0, 4.0)];
/// let setup = Setup {
///     profiles: &[Profile { samples: 4, input: 0, layers, skips: vec![] }],
///     machine: &Machine::uniform(2),
///     devices: &[0, 1],
///     schedule: &GPipe.schedule(2, 3)?,
///     recompute: &Recompute::Never,
///     weights: WeightPolicy::Stashing,
///     state: OptimizerState::new(2),
///     bucket: BUCKET,
/// };
/// let forecast = setup.best_cut()?;
/// assert_eq!(forecast.balance, [2, 1]);
/// assert_eq!(forecast.step_time, 24.0); // (m + p − 1)(F + B)
/// let costs = setup.costs(&forecast.balance)?;
/// assert_eq!(setup.schedule.simulate(&costs)?.makespan(), 24.0);
/// // All memory that is needed is there.
/// assert_eq!(setup.choose_layers(None)?.recompute, Recompute::Never);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The model, for the samples of a micro-batch: one profile for all devices of the machine, or one
    /// measured on each. Times are divided by the device's speed.
    pub profiles: &'a [Profile],
    /// The devices and links.
    pub machine: &'a Machine,
    /// The device of each worker, by its index in the machine.
    pub devices: &'a [usize],
    /// The schedule.
    pub schedule: &'a Schedule,
    /// What is recomputed.
    pub recompute: &'a Recompute,
    /// Which versions of the weights passes use, if the schedule is asynchronous.
    pub weights: WeightPolicy,
    /// What the optimizer keeps.
    pub state: OptimizerState,
    /// Bytes of gradients that replicas add up at once; see [`PlanRequest::bucket`].
    ///
    /// [`PlanRequest::bucket`]: crate::PlanRequest::bucket
    pub bucket: u64,
}

impl Setup<'_> {
    /// Predicts the cost of a cut, given by the layers of each stage.
    ///
    /// # Errors
    ///
    /// If the cut is not one of this model into the schedule's stages, a worker has no device, the profiles
    /// do not fit each other or the machine, or a cost is out of range.
    pub fn forecast(&self, balance: &[usize]) -> Result<Forecast, PlanError> {
        let model = self.model_of(balance)?;
        self.shape(&model, &self.mode())?
            .forecast(balance, self.recompute)
    }

    /// The model, if it has such a cut.
    fn model_of(&self, balance: &[usize]) -> Result<ProfiledModel<'_>, PlanError> {
        let model = self.model()?;
        let layers: usize = balance.iter().sum();
        let fits = balance.len() == self.schedule.stages() && !balance.contains(&0);
        if !fits || layers != model.layers() {
            return Err(PlanError::Balance {
                balance: balance.to_vec(),
                stages: self.schedule.stages(),
                layers: model.layers(),
            });
        }
        Ok(model)
    }

    /// The costs of a cut, to be simulated.
    ///
    /// # Errors
    ///
    /// Those of [`forecast`](Self::forecast).
    pub fn costs(&self, balance: &[usize]) -> Result<Costs, PlanError> {
        let model = self.model_of(balance)?;
        let mode = self.mode();
        let shape = self.shape(&model, &mode)?;
        Ok(shape.costs(balance, self.recompute))
    }

    /// The cut with the fastest step that fits. If none fits, one that comes close. For very many layers
    /// or stages, a good one: the balanced cut, with single layers moved while the step gets faster.
    ///
    /// # Errors
    ///
    /// If there are more stages than layers, a worker has no device, the profiles do not fit each other or
    /// the machine, or a cost is out of range.
    pub fn best_cut(&self) -> Result<Forecast, PlanError> {
        let model = self.model()?;
        let mut found = Found::default();
        let mode = self.mode();
        let shape = self.shape(&model, &mode)?;
        cuts::search(
            &shape,
            0,
            &mut found,
            (&mut Budget::full(false), &mut Choices::default()),
        )?;
        found.best().ok_or(PlanError::Nothing("cut"))
    }

    /// The layers to recompute, of a cut or with the best cut, with the fastest step that fits. If nothing
    /// fits, what comes close. What is [recomputed](Self::recompute) counts for nothing.
    ///
    /// # Errors
    ///
    /// Those of [`forecast`](Self::forecast) and [`best_cut`](Self::best_cut).
    pub fn choose_layers(&self, balance: Option<&[usize]>) -> Result<Forecast, PlanError> {
        let model = match balance {
            Some(balance) => self.model_of(balance)?,
            None => self.model()?,
        };
        let (mut found, mut choices) = (Found::default(), Choices::default());
        // What recomputes nothing at all has fewer copies of layers.
        for mode in [Mode::Fixed(Recompute::Never), Mode::ByLayer] {
            let shape = self.shape(&model, &mode)?;
            if !shape.has_whole_replicas() {
                return Err(PlanError::ReplicasByLayer);
            }
            let work = (&mut Budget::full(shape.is_by_layer()), &mut choices);
            match balance {
                Some(balance) => cuts::try_cut(&shape, balance, &mut found, work)?,
                None => cuts::search(&shape, 0, &mut found, work)?,
            }
        }
        found.best().ok_or(PlanError::Nothing("cut"))
    }

    /// The cut whose slowest stage takes least, even if it does not fit. Recomputed forward passes count
    /// twice.
    ///
    /// # Errors
    ///
    /// Those of [`best_cut`](Self::best_cut).
    pub fn balanced_cut(&self) -> Result<Vec<usize>, PlanError> {
        Ok(self.shape(&self.model()?, &self.mode())?.balanced_cut()?)
    }

    fn mode(&self) -> Mode {
        Mode::Fixed(self.recompute.clone())
    }

    fn model(&self) -> Result<ProfiledModel<'_>, PlanError> {
        let (workers, devices) = (self.schedule.workers().len(), self.devices.len());
        let known = self.machine.devices.len();
        let exist = self.devices.iter().all(|&device| device < known);
        if workers != devices || !exist {
            return Err(PlanError::TooFewDevices { workers, devices });
        }
        let (stages, layers) = (self.schedule.stages(), self.layers()?);
        if stages > layers {
            return Err(CutError::TooManyStages { stages, layers }.into());
        }
        let profiles = self.profiles.iter().cloned();
        let (machine, state) = (self.machine, self.state);
        Ok(ProfiledModel::new(profiles, machine, state, self.bucket))
    }

    fn layers(&self) -> Result<usize, PlanError> {
        let (profiles, devices) = (self.profiles.len(), self.machine.devices.len());
        let first = self.profiles.first().ok_or(PlanError::Nothing("profile"))?;
        let layers = first.layers.len();
        let is_equal = |other: &Profile| other.layers.len() == layers;
        if (profiles == 1 || profiles == devices) && self.profiles.iter().all(is_equal) {
            let mut skips = self.profiles.iter().flat_map(|profile| &profile.skips);
            skips.try_for_each(|skip| skip.check(layers))?;
            return Ok(layers);
        }
        Err(PlanError::Profiles { profiles, devices })
    }

    fn shape<'a>(
        &'a self,
        model: &'a ProfiledModel<'a>,
        mode: &'a Mode,
    ) -> Result<Shape<'a>, PlanError> {
        Shape::new(model, self.devices, self.schedule, (mode, self.weights))
    }
}
