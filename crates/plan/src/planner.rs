//! Finds the best pipeline for a model and a machine.
//!
//! A candidate is a *shape* (number of workers, schedule, micro-batches, recomputation, replicas, the
//! device of each worker) and a cut. [`shapes`] lists shapes. [`cuts`] finds the best cut of a shape
//! without simulating cuts that cannot be better. [`shape`] predicts the cost of a cut by simulating a
//! step. [`verdict`] compares the best candidates.

mod by_layer;
mod candidate;
mod choices;
mod coarse;
mod cuts;
mod error;
mod ranges;
mod recomputed;
mod request;
mod setup;
mod shape;
mod shapes;
mod verdict;
mod waiting;

use std::collections::BTreeMap;

use stovepipe_schedule::{Recompute, Rule};

use crate::Profile;
use choices::Choices;
use coarse::Coarse;
use cuts::{Budget, Found};
use shape::ProfiledModel;
use shapes::ShapeRequest;

pub use candidate::{Candidate, Forecast};
pub use error::PlanError;
pub(crate) use ranges::ranges;
pub use request::{BUCKET, PlanRequest};
pub use setup::Setup;
pub use verdict::{Plan, RunnerUp, Verdict};

impl PlanRequest<'_> {
    /// Finds the fastest pipeline that fits.
    ///
    /// For each candidate it simulates a step, except for cuts that a lower bound rules out. If there are
    /// too many candidates, it tries only a few cuts of some shapes; see [`Plan::exact`].
    ///
    /// # Errors
    ///
    /// If a choice is empty, there are more workers than layers or devices, or more micro-batches than
    /// samples, a cost is out of range, or no candidate fits.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.check()?;
        let mut budgets = [false, true].map(Budget::full);
        let coarse = Coarse::new(self.profile, !self.names_layers());
        let model = |&count: &usize| (count, self.model(&coarse.profile, count));
        let mut choices = BTreeMap::<usize, Choices>::new();
        let models: BTreeMap<_, _> = self.micro_batches.iter().map(model).collect();
        let mut shapes: Vec<_> = (models.iter())
            .flat_map(|(&count, model)| shapes::shapes(self, count, model.layers()))
            .map(|shape| (shape.bound(&models[&shape.micro_batches]), shape))
            .collect();
        // The most promising first: they may rule out the others. What is chosen by layer comes last, and only
        // counts if it beats all others.
        let by_layer = |shape: &ShapeRequest| shape.is_by_layer();
        shapes.sort_by(|a, b| {
            by_layer(&a.1)
                .cmp(&by_layer(&b.1))
                .then(a.0.total_cmp(&b.0))
        });
        let mut found = BTreeMap::<(Rule, String), Found>::new();
        let mut best = f64::INFINITY;
        for (number, (bound, request)) in shapes.iter().enumerate() {
            let group = found.entry(request.group()).or_default();
            if request.is_by_layer() {
                group.limit = best;
            }
            if group.is_hopeless(*bound) {
                continue;
            }
            let budget = &mut budgets[usize::from(request.is_by_layer())];
            if budget.actions == 0 && request.is_by_layer() {
                budget.exact = false;
                continue;
            }
            let schedule = request.schedule()?;
            let model = &models[&request.micro_batches];
            let shape = request.shape(model, &schedule)?;
            let choices = choices.entry(request.micro_batches).or_default();
            cuts::search(&shape, number, group, (budget, choices))?;
            best = best.min(group.fastest());
        }
        let refine =
            |number: usize, forecast| self.refine(shapes[number].1.clone(), forecast, &coarse);
        let (mut fitting, mut misfits) = (Vec::new(), Vec::new());
        for group in found.into_values() {
            match (group.fitting, group.misfit) {
                (Some((number, forecast)), _) => fitting.push(refine(number, forecast)?),
                // Where others fit, what is chosen by layer is of interest only if it is faster.
                (None, Some((number, forecast, _))) if group.limit.is_infinite() => {
                    misfits.push(refine(number, forecast)?);
                }
                (None, _) => {}
            }
        }
        let exact = budgets.iter().all(|budget| budget.exact) && coarse.is_whole();
        verdict::conclude(self.machine, fitting, misfits, exact)
    }

    /// Rules that are not tried, because others are and nothing can be gained: those that
    /// [need halves](Rule::needs_halves), if no layer can compute the gradients of its weights later.
    #[must_use]
    pub fn left_out(&self) -> Vec<Rule> {
        let rules = self.rules.iter().copied();
        let (halved, others): (Vec<_>, Vec<_>) = rules.partition(|rule| rule.needs_halves());
        match self.profile.has_halves() || others.is_empty() {
            true => Vec::new(),
            false => halved,
        }
    }

    /// Whether layers are named that are to be recomputed: then none may be joined.
    fn names_layers(&self) -> bool {
        let mut modes = self.recompute.iter();
        modes.any(|mode| matches!(mode, Recompute::Segments(_)))
    }

    fn model(&self, profile: &Profile, micro_batches: usize) -> ProfiledModel<'_> {
        let profile = profile.for_samples(self.mini_batch.div_ceil(micro_batches));
        ProfiledModel::new([profile], self.machine, self.state, self.bucket)
    }

    /// Cuts the model as the coarse one was cut, or better.
    fn refine(
        &self,
        request: ShapeRequest,
        forecast: Forecast,
        coarse: &Coarse,
    ) -> Result<Candidate, PlanError> {
        if coarse.is_whole() {
            return Ok(request.candidate(forecast));
        }
        let model = self.model(self.profile, request.micro_batches);
        let schedule = request.schedule()?;
        let shape = request.shape(&model, &schedule)?;
        let recompute = coarse.recompute(&forecast.recompute);
        let same = shape.forecast(&coarse.balance(&forecast.balance), &recompute)?;
        let finer = shape.forecast(&shape.balanced_cut()?, &recompute)?;
        let fits = |forecast| shape.misfit(forecast).is_none();
        let is_better = finer.step_time < same.step_time && fits(&finer) >= fits(&same);
        let forecast = if is_better { finer } else { same };
        Ok(request.candidate(forecast))
    }
}
