//! Whether replicas still have the same parameters.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hasher},
};

use burn::{
    module::{ModuleVisitor, Param},
    tensor::Tensor,
};
use stovepipe_comm::Peer;

use crate::{
    api::{error::StepError, pipeline::Pipeline},
    engine::panic::caught,
    model::{layer::Layer, parameters::is_statistic},
};

impl<L: Layer> Pipeline<L> {
    /// Checks that all processes that have a stage have the same parameters and running statistics of it.
    /// All processes call this. They compare a checksum of each tensor, which is read from its device. It
    /// does nothing in a single process, where replicas share one copy of the parameters. Replicas on devices
    /// of unlike kinds get those of the first one before, and their running statistics are not compared.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::Pipeline;
    ///
    /// let builder = Pipeline::builder(Dense::layers(&[3, 2])).devices([Device::flex()]);
    /// builder.build()?.check_replicas()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StepError::ReplicasDiffer`] names the first tensor that differs, and another process that has it.
    /// Or if another process has failed.
    pub fn check_replicas(&self) -> Result<(), StepError> {
        let processes = &self.engine.processes;
        if !processes.are_several() {
            return Ok(());
        }
        let call = ("the call".to_owned(), "check_replicas".to_owned());
        let (_turn, _) = self.meet(self.engine.take_turn(), |_| (vec![call], ()))?;
        let own = caught(|| self.checksums()).map_err(StepError::panicked("reading of tensors"));
        let own = processes.meet(own, |_| Vec::new())?;
        let all = processes.share(own)?;
        let mut firsts = HashMap::new();
        for (rank, own) in all.into_iter().enumerate() {
            for (tensor, sum) in own {
                let &mut (first, of_first) = firsts.entry(tensor.clone()).or_insert((rank, sum));
                if sum != of_first {
                    let peer = |rank| Peer {
                        rank,
                        host: self.host(rank),
                    };
                    let replicas = [peer(first), peer(rank)];
                    let layer = tensor
                        .split('.')
                        .next()
                        .and_then(|layer| layer.parse().ok());
                    return Err(StepError::ReplicasDiffer {
                        stage: layer
                            .and_then(|layer| self.stage_of(layer))
                            .unwrap_or_default(),
                        tensor: format!("layers.{tensor}"),
                        replicas,
                    });
                }
            }
        }
        Ok(())
    }

    fn host(&self, rank: usize) -> String {
        let host = self.communicator().and_then(|comm| comm.host(rank));
        host.unwrap_or_default()
    }

    fn stage_of(&self, layer: usize) -> Option<usize> {
        let stages = self.engine.stages.iter();
        stages
            .clone()
            .position(|stage| stage.layers.contains(&layer))
    }

    /// Of this process's tensors, by name.
    fn checksums(&self) -> Vec<(String, u64)> {
        let mut sums = Checksums::default();
        for (index, layer) in self.layers().iter().enumerate() {
            if self.engine.is_own_layer(index) {
                let stage = self.stage_of(index);
                sums.leaves_out = stage.is_some_and(|stage| self.engine.unlike[stage]);
                sums.path = vec![index.to_string()];
                layer.valid().visit(&mut sums);
            }
        }
        sums.sums
    }
}

#[derive(Default)]
struct Checksums {
    /// Running statistics.
    leaves_out: bool,
    in_statistics: bool,
    path: Vec<String>,
    /// In the order of layers.
    sums: Vec<(String, u64)>,
}

impl ModuleVisitor for Checksums {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.in_statistics |= is_statistic(name, container_type);
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.in_statistics &= !is_statistic(name, container_type);
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.leaves_out && self.in_statistics {
            return;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(param.val().into_data().as_bytes());
        self.sums.push((self.path.join("."), hasher.finish()));
    }
}
