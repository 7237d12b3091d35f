//! Changes of all stages at once, for optimizers.

use std::collections::HashMap;

use burn::optim::GradientsParams;
use crossbeam_channel::unbounded;

use crate::{
    api::{
        error::{BoxedError, StepError},
        pipeline::Pipeline,
    },
    engine::{core::Engine, panic::caught, worker},
    model::{layer::Layer, parameters::move_gradients},
};

/// The layers and the state of a stage after a change.
type Changed<L, S> = (Vec<L>, S);

impl<L: Layer> Pipeline<L> {
    /// Runs `change` on the layers of all stages at once, each on its own worker, with one state per stage:
    /// optimizers update in parallel this way. Layers are moved, not cloned, so they can change in place.
    /// Stages of other processes change there; their states are returned as they are.
    ///
    /// # Errors
    ///
    /// If there is not one state per stage, or a worker is stuck in an earlier step; or if `change` panics,
    /// returns another number of layers, or takes longer than the
    /// [limit](crate::PipelineBuilder::stall_timeout). In the latter cases the layers are dropped and the
    /// pipeline cannot be used again: keep a clone if that may happen.
    pub fn change_stages<S: Send + 'static>(
        &mut self,
        states: Vec<S>,
        change: impl Fn(usize, Vec<L>, S) -> (Vec<L>, S) + Clone + Send + 'static,
    ) -> Result<Vec<S>, StepError> {
        let engine = self.engine.clone();
        let stages = engine.stages.len();
        if states.len() != stages {
            let states = states.len();
            return Err(StepError::WrongStates { states, stages });
        }
        let _turn = engine.processes.meet(engine.take_turn(), |_| {
            vec![("the call".to_owned(), "change_stages".to_owned())]
        })?;
        let (results, inbox) = unbounded();
        let mut rest = self.take_layers();
        let (mut workers, mut kept) = (HashMap::new(), HashMap::new());
        workers.extend(engine.processes.own_workers().zip(&engine.workers));
        for (stage, state) in states.into_iter().enumerate().rev() {
            let own = rest.split_off(engine.stages[stage].layers.start);
            let home = engine.home(stage);
            let Some(worker) = home.and_then(|seat| workers.get(&seat.worker)) else {
                // Other processes change it.
                kept.insert(stage, (own, state));
                continue;
            };
            let (change, results) = (change.clone(), results.clone());
            let device = engine.stages[stage].device.clone();
            worker.run(move || {
                let changed = caught(|| change(stage, own, state)).map_err(BoxedError::from);
                let changed = changed.and_then(|changed| {
                    device.flush()?; // other threads read it
                    Ok(changed)
                });
                let _ = results.send((stage, changed));
            });
        }
        worker::settle(&engine.workers, engine.stall_timeout);
        let mut changed: HashMap<_, _> = inbox.try_iter().collect();
        let changed = (0..stages).map(|stage| match kept.remove(&stage) {
            Some(kept) => Ok(kept),
            None => check(&engine, stage, changed.remove(&stage)),
        });
        let changed = changed.collect::<Result<Vec<_>, _>>();
        let changed = engine.processes.meet(changed, |_| Vec::new())?;
        let (layers, states): (Vec<_>, _) = changed.into_iter().unzip();
        self.set_layers(layers.into_iter().flatten().collect());
        Ok(states)
    }

    /// Splits gradients into one container per stage.
    #[must_use]
    pub fn split_gradients(&self, mut gradients: GradientsParams) -> Vec<GradientsParams> {
        let of_stage = |layers: &[L]| {
            let mut own = GradientsParams::new();
            (layers.iter()).for_each(|layer| move_gradients(layer, &mut gradients, &mut own));
            own
        };
        self.stage_layers().map(of_stage).collect()
    }
}

/// The result of a change, if all layers were returned. There is none if the worker hangs or has ended.
fn check<L, S>(
    engine: &Engine,
    stage: usize,
    changed: Option<Result<Changed<L, S>, BoxedError>>,
) -> Result<Changed<L, S>, StepError> {
    let placement = &engine.stages[stage];
    let expected = placement.layers.len();
    let source: BoxedError = match changed {
        Some(Ok(changed)) if changed.0.len() == expected => return Ok(changed),
        Some(Ok((own, _))) => format!("{} of {expected} layers were returned", own.len()).into(),
        Some(Err(source)) => source,
        None => match engine.stall_timeout {
            Some(limit) => format!("no answer for {:.1} s", limit.as_secs_f64()).into(),
            None => "its worker has ended".into(),
        },
    };
    Err(StepError::ChangeFailed {
        stage,
        device: placement.device_name.clone(),
        source,
    })
}
