//! How a model is cut and run.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{
    Balance, BuildError, Layer, Measured, NamedDevice, Pipeline, PipelineBuilder, Precision,
    Profiler, StepError,
    device::{DeviceError, Link, MOST_THREADS, measure_link, slowest_link},
    error::ProcessError,
    measure::Profile,
};
use stovepipe_schedule::{DataParallel, RuleOptions, Scheduler, WeightPolicy};

use super::{
    all_reduce::AllReduceSetting,
    balance::BalanceSetting,
    check::{AT_LEAST_ONE, Range, check},
    recompute::RecomputeSetting,
    schedule::ScheduleSetting,
};
use crate::{error::TrainError, processes::Processes};

/// Schedules are lists of all their actions: more would be a mistake.
/// The most micro-batches of a mini-batch.
pub const MOST_MICRO_BATCHES: usize = 65_536;
const MICRO_BATCHES: Range<usize> = (
    |count| (1..=MOST_MICRO_BATCHES).contains(&count),
    "from 1 to 65536",
);
const THREADS: Range<usize> = (
    |count| (1..=MOST_THREADS).contains(&count),
    "from 1 to 1024",
);

/// How a model is cut and run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Pipeline")]
pub struct PipelineSettings {
    /// Number of stages; with several chunks on each device, number of devices
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub stages: usize,
    /// Replicas, which take micro-batches in turn: so many of the whole pipeline, or so many of each
    /// stage (3,1)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub replicas: Vec<usize>,
    /// Shares of the micro-batches, one for each replica of the whole pipeline: with 3,1 the first
    /// replica takes three of every four [default: equal shares]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub shares: Vec<usize>,
    /// Mebibytes of gradients that replicas in several processes add up at a time, while backward
    /// passes go on
    #[arg(long, value_name = "MIB", default_value_t = 25)]
    pub bucket_mib: usize,
    /// What adds up the gradients of replicas in several processes
    #[arg(long, value_enum, value_name = "NAME", default_value = "ring")]
    pub all_reduce: AllReduceSetting,
    /// Devices: one for all workers, or one for each stage of each replica (cpu, cpu:threads=4,
    /// wgpu:0, cuda:0)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "cpu"
    )]
    pub devices: Vec<String>,
    /// Where to cut: `auto` (fastest predicted step, from measured layers), `time` (shortest
    /// slowest stage), `size` (even memory), `even` (even numbers of layers), or the layers of each
    /// stage, such as 5,4
    #[arg(long, value_name = "LIST", default_value = "auto")]
    pub balance: BalanceSetting,
    /// Micro-batches in a mini-batch
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub micro_batches: usize,
    /// Order of forward and backward passes: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-min,
    /// v-half, v-1f1b, a CSV file that lists the actions of each worker, or pipedream, which is
    /// experimental: it does not wait for updates, so the result is not that of one device
    #[arg(long, value_name = "NAME|FILE", default_value = "1f1b")]
    pub schedule: ScheduleSetting,
    /// With the schedule `pipedream`, let all stages use the version of the weights that the first
    /// stage used for a micro-batch
    #[arg(long)]
    pub vertical_sync: bool,
    /// With the schedule `pipedream`, use the newest weights in each pass, for comparisons
    #[arg(long, hide = true, conflicts_with = "vertical_sync")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_stashing: bool,
    /// Stages on each device, for the schedule `interleaved`
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub chunks: usize,
    /// What is recomputed: always, except-last, never, layers (0-3,7-9), or by-layer: the layers that
    /// fit with the fastest predicted step
    #[arg(long, value_name = "MODE|LAYERS", default_value_t = RecomputeSetting::default())]
    pub recompute: RecomputeSetting,
    /// CPU threads of each stage, unless its device names another number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads_per_stage: usize,
    /// Precision of the computation: f32, or mixed precision in bf16 or f16 (parameters stay f32)
    #[arg(long, value_name = "TYPE", default_value_t = Precision::F32)]
    pub precision: Precision,
    /// Bytes of memory of each device: one number for all, or one for each [default: free memory
    /// for the CPU, all memory of CUDA devices, unknown for others]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub device_memory: Vec<u64>,
    /// Seconds after which a step that does not get on is an error, and a process that is silent
    /// counts as dead; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub stall_timeout: u64,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        super::defaults()
    }
}

impl PipelineSettings {
    /// Checks all settings for a model of `layers` layers.
    ///
    /// ```
    /// use stovepipe_train::PipelineSettings;
    ///
    /// assert!(PipelineSettings::default().check(9).is_ok());
    /// let settings = PipelineSettings { stages: 10, ..Default::default() };
    /// let error = settings.check(9).unwrap_err();
    /// assert_eq!(error.to_string(), "10 stages are more than the model's 9 layers");
    /// ```
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or does not fit the others.
    pub fn check(&self, layers: usize) -> Result<(), TrainError> {
        self.check_without_model()?;
        let stages = self.scheduler()?.stages(self.workers());
        self.balance(None).cut(layers, stages)?;
        for device in self.worker_devices()? {
            self.precision.check(&device).map_err(BuildError::from)?;
        }
        Ok(())
    }

    /// Checks what does not depend on the model: numbers, and the names of devices.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range, or a device is not available.
    pub fn check_without_model(&self) -> Result<(), TrainError> {
        check([
            ("stages", self.stages, AT_LEAST_ONE),
            ("micro-batches", self.micro_batches, MICRO_BATCHES),
            ("threads-per-stage", self.threads_per_stage, THREADS),
            ("chunks", self.chunks, AT_LEAST_ONE),
            ("bucket-mib", self.bucket_mib, AT_LEAST_ONE),
        ])?;
        self.check_replicas()?;
        self.check_asynchronous()?;
        let (given, devices) = (self.device_memory.len(), self.workers());
        if given > 1 && given != devices {
            return Err(TrainError::DeviceMemories { given, devices });
        }
        self.named_devices().map(drop)
    }

    /// The number of workers: stages in all replicas.
    ///
    /// ```
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let with = |replicas: &[usize]| PipelineSettings {
    ///     stages: 2,
    ///     replicas: replicas.to_vec(),
    ///     ..Default::default()
    /// };
    /// assert_eq!([with(&[1]).workers(), with(&[3]).workers(), with(&[3, 1]).workers()], [2, 6, 4]);
    /// ```
    #[must_use]
    pub fn workers(&self) -> usize {
        match self.replicas[..] {
            [] => self.stages,
            [of_all] => self.stages.saturating_mul(of_all),
            _ => (self.replicas.iter()).fold(0, |sum, &own| sum.saturating_add(own)),
        }
    }

    fn check_replicas(&self) -> Result<(), TrainError> {
        let all = self.replicas.iter();
        check(all.map(|&count| ("replicas", count, AT_LEAST_ONE)))?;
        let most = self.replicas.iter().copied().max().unwrap_or(1);
        let (given, stages) = (self.replicas.len(), self.stages);
        if given > 1 && given != stages {
            return Err(TrainError::Replicas { given, stages });
        }
        self.check_shares()?;
        match &self.schedule {
            _ if most == 1 => Ok(()),
            _ if most > self.micro_batches => Err(TrainError::ManyReplicas {
                replicas: most,
                micro_batches: self.micro_batches,
            }),
            // 1F1B-RR has replicas of stages, not of whole pipelines.
            other if other.is_asynchronous() && given < stages => {
                Err(TrainError::NoReplicas(other.to_string()))
            }
            ScheduleSetting::Rule(rule) if given == 1 || rule.takes_replicas() => Ok(()),
            other => Err(TrainError::NoReplicas(other.to_string())),
        }
    }

    fn check_asynchronous(&self) -> Result<(), TrainError> {
        let is_asynchronous = self.schedule.is_asynchronous();
        if self.vertical_sync && !is_asynchronous {
            return Err(TrainError::OnlyAsynchronous("--vertical-sync"));
        }
        if self.no_stashing && !is_asynchronous {
            return Err(TrainError::OnlyAsynchronous("--no-stashing"));
        }
        if is_asynchronous && self.precision == Precision::F16 {
            return Err(TrainError::OnlySynchronous("--precision f16"));
        }
        Ok(())
    }

    fn check_shares(&self) -> Result<(), TrainError> {
        let shares = self.shares.iter();
        check(shares.map(|&share| ("shares", share, AT_LEAST_ONE)))?;
        match self.replicas[..] {
            _ if self.shares.is_empty() => Ok(()),
            [replicas] if replicas == self.shares.len() => {
                let replicated = DataParallel {
                    scheduler: (),
                    shares: self.shares.clone(),
                };
                let turns = replicated.turns().take(self.micro_batches);
                let busy: BTreeSet<_> = turns.collect();
                match (0..replicas).find(|replica| !busy.contains(replica)) {
                    Some(replica) => Err(TrainError::IdleReplica {
                        replica,
                        micro_batches: self.micro_batches,
                    }),
                    None => Ok(()),
                }
            }
            _ => Err(TrainError::Shares {
                given: self.shares.len(),
                replicas: self.replicas.clone(),
            }),
        }
    }

    /// The CPU threads of all workers of a process together.
    ///
    /// ```
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let devices = ["cpu", "cpu:threads=3"].map(str::to_owned).to_vec();
    /// let settings = PipelineSettings { devices, threads_per_stage: 2, ..Default::default() };
    /// assert_eq!(settings.cpu_threads(0)?, 5);
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a device is not available.
    pub fn cpu_threads(&self, process: usize) -> Result<usize, TrainError> {
        let devices = self.named_devices()?;
        let is_counted = |device: &&NamedDevice| device.is_cpu() && device.process == process;
        let of_cpu = devices.iter().filter(is_counted);
        let threads: usize = of_cpu.map(|device| self.threads(device)).sum();
        Ok(threads.saturating_mul(self.workers() / devices.len().max(1)))
    }

    fn threads(&self, device: &NamedDevice) -> usize {
        device.threads.unwrap_or(self.threads_per_stage)
    }

    /// Checks in advance that there is a schedule for every mini-batch of an epoch of `samples`: one from
    /// a file is for one number of micro-batches only.
    ///
    /// # Errors
    ///
    /// If there is none, also for the last mini-batch, which may have fewer samples.
    pub fn check_batches(&self, batch_size: usize, samples: usize) -> Result<(), TrainError> {
        let scheduler = self.scheduler()?;
        let stages = scheduler.stages(self.workers());
        let check = |samples: usize| {
            let scheduled = scheduler.schedule(stages, self.micro_batches.min(samples));
            scheduled.map(|_| ()).map_err(StepError::from)
        };
        check(batch_size)?;
        match samples % batch_size {
            0 => Ok(()),
            samples => check(samples).map_err(|source| TrainError::LastBatch { samples, source }),
        }
    }

    /// Gives each of so many processes stages in turn: the first ones to the first process, and so on. If
    /// whole pipelines have replicas, each gets processes of its own, or each process several. Keeps
    /// devices that name all processes, as `1/cpu`; else changes their names.
    ///
    /// ```
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let mut settings = PipelineSettings { stages: 3, ..Default::default() };
    /// settings.spread(2)?;
    /// assert_eq!(settings.devices, ["0/cpu", "0/cpu", "1/cpu"]);
    /// settings.spread(1)?; // a run that goes on in one process
    /// assert_eq!(settings.devices, ["cpu"]);
    ///
    /// let mut replicated = PipelineSettings { stages: 2, replicas: vec![2], ..Default::default() };
    /// replicated.spread(2)?;
    /// assert_eq!(replicated.devices, ["0/cpu", "0/cpu", "1/cpu", "1/cpu"]);
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there are fewer stages, in all replicas, than processes.
    pub fn spread(&mut self, processes: usize) -> Result<(), TrainError> {
        let named = |name: &String| Some(name.split_once('/')?.0.parse::<usize>().ok());
        let ranks: Option<Vec<_>> = self.devices.iter().map(named).collect();
        let has = |rank: usize| ranks.iter().flatten().any(|own| *own == Some(rank));
        let is_within = |rank: &Option<usize>| rank.is_some_and(|rank| rank < processes);
        let are_within = ranks.iter().flatten().all(is_within);
        if ranks.is_some() && are_within && processes > 1 && (0..processes).all(has) {
            return Ok(());
        }
        let (stages, workers) = (self.stages, self.workers());
        if workers < processes {
            return Err(TrainError::FewStages { stages, processes });
        }
        self.forget_processes();
        if processes > 1 {
            let first = self.devices.first().cloned().unwrap_or_default();
            self.devices.resize(workers, first);
            let processes = self.process_of_workers(processes);
            for (process, name) in processes.into_iter().zip(&mut self.devices) {
                *name = format!("{process}/{name}");
            }
        }
        Ok(())
    }

    /// The process of each worker, where each has one stage: the workers of a replica follow each other, and
    /// so do the replicas of a stage that has its own number of them.
    fn process_of_workers(&self, processes: usize) -> Vec<usize> {
        let (stages, workers) = (self.stages, self.workers());
        let share = |part: usize, parts: usize, of: usize| part * of / parts;
        match self.replicas[..] {
            [replicas] if processes <= replicas || processes.is_multiple_of(replicas) => {
                let of_replica = (processes / replicas).max(1);
                let process = |worker: usize| {
                    let (replica, stage) = (worker / stages, worker % stages);
                    let first = share(replica, replicas, processes);
                    first + share(stage, stages, of_replica)
                };
                (0..workers).map(process).collect()
            }
            [] | [_] if processes <= stages => (0..workers)
                .map(|worker| share(worker % stages, stages, processes))
                .collect(),
            _ if processes <= stages => {
                let of_stage = |(stage, &count): (usize, &usize)| {
                    std::iter::repeat_n(share(stage, stages, processes), count)
                };
                let of_stages = self.replicas.iter().enumerate();
                of_stages.flat_map(of_stage).collect()
            }
            _ => (0..workers)
                .map(|worker| share(worker, workers, processes))
                .collect(),
        }
    }

    /// Removes the processes from the names of devices. Equal ones become one for all stages.
    pub fn forget_processes(&mut self) {
        for name in &mut self.devices {
            if let Some((_, device)) = name.split_once('/') {
                *name = device.to_owned();
            }
        }
        let first = self.devices.first().cloned();
        if self.devices.iter().all(|name| Some(name) == first.as_ref()) {
            self.devices.truncate(1);
        }
    }

    /// The limit on a step that does not get on, if there is one.
    #[must_use]
    pub fn stall_limit(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.stall_timeout)).filter(|limit| !limit.is_zero())
    }

    fn scheduler(&self) -> Result<Box<dyn Scheduler>, TrainError> {
        let options = RuleOptions {
            chunks: self.chunks,
            replicas: self.replicas.clone(),
            update_every: Some(self.micro_batches),
        };
        let (workers, micro_batches) = (self.workers(), self.micro_batches);
        (self.schedule).scheduler(options, &self.shares, workers, micro_batches)
    }

    /// Measures layers as stages would run them: calls `measure` for each kind of device, with a
    /// profiler for it. In several processes, each measures its own devices and the links between them;
    /// links between processes are measured, too. The result includes the devices' memory, where it is known.
    ///
    /// # Errors
    ///
    /// If there is no device, one is not available, or `measure` fails.
    pub fn measure<E>(
        &self,
        processes: &Processes,
        mut measure: impl FnMut(&NamedDevice, Profiler) -> Result<Profile, E>,
    ) -> Result<Measured, E>
    where
        E: From<BuildError> + From<TrainError> + From<ProcessError> + ToString,
    {
        let devices = self.worker_devices()?;
        let mut measure = |device: &NamedDevice| {
            let is_beside =
                |other: &&NamedDevice| other.is_cpu() && other.process == device.process;
            let profiler = Profiler::on(device)
                .threads(self.threads(device))
                .precision(self.precision)
                .side_by_side(devices.iter().filter(is_beside).count());
            measure(device, profiler)
        };
        let memory = self.available_memory(processes).map_err(E::from)?.shares();
        if processes.size() == 1 {
            return Ok(Measured::on(&devices, measure)?.with_memory(&memory));
        }
        let own = devices.iter().filter(|own| own.process == processes.rank());
        let own: Vec<_> = own.cloned().collect();
        let mut measure_own = || -> Result<_, E> {
            let mut profiles = BTreeMap::new();
            for device in &own {
                if !profiles.contains_key(&device.name) {
                    profiles.insert(device.name.clone(), measure(device)?.to_toml());
                }
            }
            Ok((profiles, self.link_within(&own)?))
        };
        let (_, all) = processes.tell(measure_own(), |(profiles, link)| {
            (
                profiles.clone(),
                link.map(|link| (link.latency, link.bandwidth)),
            )
        })?;
        let profile = |device: &NamedDevice| {
            let own = all
                .get(device.process)
                .and_then(|(own, _)| own.get(&device.name));
            Profile::from_toml(own.map_or("", String::as_str))
                .map_err(|error| TrainError::format(Path::new(&device.name), error))
        };
        let measured = Measured::on(&devices, profile).map_err(E::from)?;
        let within = all.iter().filter_map(|(_, link)| *link);
        let within = within.map(|(latency, bandwidth)| Link { latency, bandwidth });
        let ranks: Vec<_> = devices.iter().map(|device| device.process).collect();
        let within = within.reduce(Link::or_slower);
        let levels = processes.levels(&ranks, within, &processes.links()?);
        Ok(measured.with_levels(levels).with_memory(&memory))
    }

    /// The slowest link between this process's workers; on one device they hand values over.
    fn link_within(&self, own: &[NamedDevice]) -> Result<Option<Link>, BuildError> {
        match own {
            [] | [_] => Ok(None),
            [first, ..] => match slowest_link(own)? {
                None => measure_link(&first.device, &first.device).map(Some),
                slowest => Ok(slowest),
            },
        }
    }

    /// The device of each worker.
    ///
    /// # Errors
    ///
    /// If there are neither one device for all workers nor one for each, or there is no such device.
    pub fn worker_devices(&self) -> Result<Vec<NamedDevice>, TrainError> {
        let mut devices = self.named_devices()?;
        if let Some(first) = devices.first().cloned() {
            devices.resize(self.workers(), first);
        }
        Ok(devices)
    }

    /// A device for all workers, or one for each.
    fn named_devices(&self) -> Result<Vec<NamedDevice>, TrainError> {
        let devices = self.devices.iter().map(|name| name.parse());
        let devices = devices.collect::<Result<Vec<NamedDevice>, DeviceError>>()?;
        match devices.len() {
            count if count == 1 || count == self.workers() => Ok(devices),
            devices => Err(TrainError::Devices {
                devices,
                workers: self.workers(),
            }),
        }
    }

    /// A pipeline's builder with these settings. `sample` returns an input of the size of a
    /// micro-batch; it is called if layers have to be measured.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// use stovepipe_train::{PipelineSettings, example::Dense};
    ///
    /// let settings = PipelineSettings { stages: 2, ..Default::default() };
    /// let layers = (0..3).map(|_| Dense::new(3, 3)).collect();
    /// let sample = || Tensor::ones([4, 3], &Device::flex());
    /// let pipeline = settings.builder(layers, sample)?.build()?;
    /// assert_eq!(pipeline.stages().len(), 2);
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or does not fit the others, a device is not available, or
    /// the sample does not pass through the model.
    pub fn builder<L: Layer<Side = ()>>(
        &self,
        layers: Vec<L>,
        sample: impl FnOnce() -> L::Input,
    ) -> Result<PipelineBuilder<L>, TrainError> {
        self.check(layers.len())?;
        if !self.measures() {
            return self.builder_with(layers, None);
        }
        let sample = sample();
        let alone = Processes::default();
        let measured = self.measure::<TrainError>(&alone, |_, profiler| {
            Ok(profiler.measure(&layers, sample.clone())?)
        })?;
        self.builder_with(layers, Some(&measured))
    }

    /// Like [`builder`](Self::builder), with layers that are already measured, or are not to be.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range or does not fit the others, or a device is not available.
    pub fn builder_with<L: Layer>(
        &self,
        layers: Vec<L>,
        measured: Option<&Measured>,
    ) -> Result<PipelineBuilder<L>, TrainError> {
        self.check(layers.len())?;
        Ok(Pipeline::builder(layers)
            .devices(self.worker_devices()?)
            .balance(self.balance(measured))
            .schedule(self.scheduler()?)
            .micro_batches(self.micro_batches)
            .recompute(self.recompute.fixed().cloned().unwrap_or_default())
            .threads_per_stage(self.threads_per_stage)
            .stall_timeout(self.stall_limit())
            .bucket(self.bucket_mib.saturating_mul(1 << 20))
            .weight_policy(match self.vertical_sync {
                true => WeightPolicy::VerticalSync,
                false if self.no_stashing => WeightPolicy::Newest,
                false => WeightPolicy::Stashing,
            })
            .all_reduce(self.all_reduce.into())
            .precision(self.precision))
    }

    /// Whether layers are measured before they are cut.
    ///
    /// ```
    /// use stovepipe_train::{PipelineSettings, settings::BalanceSetting};
    ///
    /// assert!(PipelineSettings::default().measures());
    /// let even = PipelineSettings { balance: BalanceSetting::Even, ..Default::default() };
    /// assert!(!even.measures());
    /// ```
    #[must_use]
    pub fn measures(&self) -> bool {
        if self.recompute == RecomputeSetting::ByLayer {
            return true;
        }
        match self.balance {
            BalanceSetting::Auto => self.stages > 1,
            BalanceSetting::Time | BalanceSetting::Size => true,
            BalanceSetting::Even | BalanceSetting::Layers(_) => false,
        }
    }

    /// The balance; even without the measurements that it needs.
    fn balance(&self, measured: Option<&Measured>) -> Balance {
        match (&self.balance, measured) {
            (BalanceSetting::Auto, Some(measured)) => Balance::Planned(measured.clone()),
            (BalanceSetting::Time, Some(measured)) => Balance::by_time(measured.clone()),
            (BalanceSetting::Size, Some(measured)) => Balance::by_size(measured.profile(0)),
            (BalanceSetting::Layers(layers), _) => Balance::Layers(layers.clone()),
            _ => Balance::Even,
        }
    }
}
