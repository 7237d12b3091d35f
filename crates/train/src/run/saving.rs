//! Checkpoints that are written while training goes on.

use std::{
    hint::black_box,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use burn::{
    module::{ModuleVisitor, Param},
    tensor::{ExecutionError, Tensor},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

use crate::error::TrainError;

const POLL: Duration = Duration::from_millis(5);

/// A checkpoint that the first process writes. The other processes only know of it.
pub(super) enum Saving {
    Elsewhere,
    By(JoinHandle<Saved>),
    Over(Saved),
}

/// What came of it.
pub(super) struct Saved {
    /// Lines for the user.
    pub(super) said: Vec<String>,
    pub(super) result: Result<(), TrainError>,
}

impl Saving {
    /// Writes on a thread; on this one if the system has none.
    pub(super) fn begin(write: impl Fn() -> Saved + Send + Sync + 'static) -> Self {
        let write = Arc::new(write);
        let own = write.clone();
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(move || {
            yield_to_training();
            own()
        });
        thread.map_or_else(|_| Self::Over(write()), Self::By)
    }

    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Elsewhere => false,
            Self::By(thread) => thread.is_finished(),
            Self::Over(_) => true,
        }
    }

    /// Waits in this process alone. Returns whether it had to.
    pub(super) fn wait(&self) -> bool {
        let Self::By(thread) = self else {
            return false;
        };
        let waits = !thread.is_finished();
        while !thread.is_finished() {
            thread::sleep(POLL);
        }
        waits
    }

    pub(super) fn end(self) -> Option<Saved> {
        match self {
            Self::Elsewhere => None,
            // What writes catches its own panics.
            Self::By(thread) => thread.join().ok(),
            Self::Over(saved) => Some(saved),
        }
    }
}

/// Waits until the devices of this process have the newest parameters, for as long as a step may hang: to copy them has
/// no limit.
pub(super) fn wait_for_update<L: Layer>(pipeline: &Pipeline<L>) -> Result<(), StepError> {
    let stages = vec![(); pipeline.stages().len()];
    let wait = |layers: &[L], ()| {
        // Those of a stage are updated one after the other.
        let mut last = Last(None);
        layers.iter().for_each(|layer| layer.visit(&mut last));
        Ok(last.0.map_or(Ok(()), |read| read())?)
    };
    pipeline.read_stages(stages, wait).map(drop)
}

/// Reads a number of the last parameter.
struct Last(Option<Box<dyn FnOnce() -> Result<(), ExecutionError>>>);

impl ModuleVisitor for Last {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.shape().num_elements() > 0 && param.is_require_grad() {
            let param = param.clone();
            self.0 = Some(Box::new(move || {
                let one: [_; D] = std::array::from_fn(|_| 0..1);
                let data = param.val().detach().slice(one).try_into_data()?;
                // The bytes of a GPU come when somebody looks at them.
                black_box(data.as_bytes().first());
                Ok(())
            }));
        }
    }
}

/// Gives this thread the lowest priority, so that it uses what cores are left: where Linux has priorities of threads.
fn yield_to_training() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, LOWEST);
}

#[cfg(target_os = "linux")]
const LOWEST: i32 = 19;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use burn::{
        module::{Module, ParamId},
        tensor::Device,
    };
    use stovepipe_pipeline::layer;

    use super::*;

    #[derive(Module, Debug)]
    struct Scale {
        by: Param<Tensor<1>>,
    }

    #[layer]
    impl Scale {
        fn forward(&self, x: Tensor<2>) -> Tensor<2> {
            x * self.by.val().unsqueeze()
        }
    }

    /// The factor comes from `compute`, when somebody wants it.
    fn scale(compute: fn() -> f32) -> Scale {
        let factor = move |device: &Device, _| Tensor::from_floats([compute()], device);
        let (id, device) = (ParamId::new(), Device::flex());
        let by = Param::uninitialized(id, factor, device, true, [1].into());
        Scale { by }
    }

    #[test]
    fn an_update_that_fails_or_hangs_is_an_error() {
        let waited = |compute: fn() -> f32| {
            let layers = vec![scale(|| 1.0), scale(|| 1.0)];
            let builder = Pipeline::builder(layers).devices(vec![Device::flex(); 2]);
            let limit = Some(Duration::from_secs(2));
            let mut pipeline = builder.stall_timeout(limit).build().unwrap();
            let update = move |stage, layers: Vec<Scale>, ()| {
                let updated = [scale(|| 2.0), scale(compute)];
                Ok((
                    updated.into_iter().skip(stage).take(layers.len()).collect(),
                    (),
                ))
            };
            pipeline.change_stages(vec![(); 2], update).unwrap();
            wait_for_update(&pipeline).map_err(|error| error.to_string())
        };
        assert_eq!(waited(|| 3.0), Ok(()));
        let failed = waited(|| panic!("the device is lost")).unwrap_err();
        assert!(
            failed.contains("stage 1") && failed.contains("the device is lost"),
            "{failed}"
        );
        let hung = waited(|| {
            loop {
                thread::park();
            }
        });
        let hung = hung.unwrap_err();
        assert!(
            hung.contains("stage 1") && hung.contains("no answer for 2.0 s"),
            "{hung}"
        );
    }
}
