use std::{sync::Arc, time::Instant};

use serde::{Serialize, de::DeserializeOwned};
use stovepipe_comm::{Communicator, ProcessError, Wait, gather};
use stovepipe_pipeline::{Layer, Pipeline};
use stovepipe_plan::LinkLevel;
use stovepipe_schedule::Link;

/// What measures a link: how often, and with how many bytes.
const REPEATS: usize = 8;
const LARGE: usize = 4 << 20;

/// The processes that train together; one by itself without a communicator.
///
/// Every process makes the same calls. They wait for each other as long as all live.
///
/// ```
/// use std::thread::spawn;
/// use stovepipe_train::{Processes, TrainError};
///
/// // Threads take the place of processes here.
/// let ranks = stovepipe_comm::local(2, None)?.into_iter().map(|comm| {
///     spawn(|| {
///         let processes = Processes::new(Some(comm.into()));
///         let opened = if processes.is_first() { Ok(()) } else { Err(TrainError::EmptySet("test")) };
///         processes.agree(opened).unwrap_err().to_string()
///     })
/// });
/// let errors: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join()).collect();
/// assert!(errors[0].as_ref().unwrap().starts_with("rank 1 on localhost failed: the test set"));
/// assert!(errors[1].as_ref().unwrap().starts_with("the test set"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Processes(Option<Arc<Communicator>>);

impl Processes {
    /// Those that a communicator connects.
    #[must_use]
    pub fn new(communicator: Option<Arc<Communicator>>) -> Self {
        Self(communicator)
    }

    /// Those of a pipeline.
    pub(crate) fn of<L: Layer>(pipeline: &Pipeline<L>) -> Self {
        Self(pipeline.communicator().cloned())
    }

    /// What connects them.
    #[must_use]
    pub fn communicator(&self) -> Option<&Arc<Communicator>> {
        self.0.as_ref()
    }

    /// The rank of this process.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, |comm| comm.rank())
    }

    /// The number of processes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |comm| comm.size())
    }

    /// The name of a rank's host; empty for a process by itself.
    #[must_use]
    pub fn host(&self, rank: usize) -> String {
        let host = self.0.as_ref().and_then(|comm| comm.host(rank));
        host.unwrap_or_default()
    }

    /// Whether they are on more than one host.
    #[must_use]
    pub fn are_on_several_hosts(&self) -> bool {
        (1..self.size()).any(|rank| self.host(rank) != self.host(0))
    }

    /// Whether this is the one that has the files.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The values of all processes, by rank.
    ///
    /// # Errors
    ///
    /// If another process has ended.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, ProcessError> {
        let Some(comm) = &self.0 else {
            return Ok(vec![own]);
        };
        gather(comm, &own, Wait::WhileAllLive)
    }

    /// Whether it is so in any process.
    ///
    /// # Errors
    ///
    /// If another process has ended.
    pub fn any(&self, own: bool) -> Result<bool, ProcessError> {
        Ok(self.gather(own)?.contains(&true))
    }

    /// The value of the first process.
    ///
    /// # Errors
    ///
    /// If another process has ended.
    pub fn of_first<T>(&self, own: T) -> Result<T, ProcessError>
    where
        T: Clone + Serialize + DeserializeOwned,
    {
        self.by_first(|| Ok(own))
    }

    /// The links from each process to the next one, in the order of ranks. One sends, while all others wait.
    ///
    /// ```
    /// use stovepipe_train::Processes;
    ///
    /// assert!(Processes::default().links()?.is_empty()); // a process by itself
    /// # Ok::<(), stovepipe_pipeline::error::ProcessError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If another process has ended.
    pub fn links(&self) -> Result<Vec<Link>, ProcessError> {
        let Some(comm) = &self.0 else {
            return Ok(Vec::new());
        };
        let link = |to: usize| {
            let time = |bytes: usize| -> Result<f64, ProcessError> {
                let mut values = vec![Vec::new(); comm.size()];
                if comm.rank() == to - 1 {
                    values[to] = vec![0; bytes];
                }
                let began = Instant::now();
                comm.all_to_all(values)?;
                Ok(began.elapsed().as_secs_f64())
            };
            let fastest = |bytes| -> Result<f64, ProcessError> {
                let times = (0..REPEATS).map(|_| time(bytes));
                let times = times.collect::<Result<Vec<_>, _>>()?;
                // The process that waits for the bytes is the slowest of all.
                let all = self.gather(times)?;
                let slowest = |run: usize| all.iter().map(|times| times[run]).fold(0.0, f64::max);
                Ok((0..REPEATS).map(slowest).fold(f64::INFINITY, f64::min))
            };
            let (latency, large) = (fastest(0)?, fastest(LARGE)?);
            // Both times are noisy: at most half of the large one counts as latency.
            let copying = (large - latency).max(large / 2.0).max(f64::EPSILON);
            let bandwidth = LARGE as f64 / copying;
            Ok(Link { latency, bandwidth })
        };
        (1..comm.size()).map(link).collect()
    }

    /// The levels of links between devices of these processes. `within` is the slowest link within a
    /// process; `links` are those [between](Self::links) processes.
    ///
    /// ```
    /// use stovepipe_schedule::Link;
    /// use stovepipe_train::Processes;
    ///
    /// let within = Link { latency: 1e-6, bandwidth: 16e9 };
    /// let levels = Processes::default().levels(&[0, 0], Some(within), &[]);
    /// assert_eq!((levels[0].workers, levels[0].bandwidth), (2, 16e9));
    /// ```
    #[must_use]
    pub fn levels(
        &self,
        process_of_device: &[usize],
        within: Option<Link>,
        links: &[Link],
    ) -> Vec<LinkLevel> {
        let is_near = |rank: usize| self.host(rank) == self.host(rank + 1);
        // Where none was measured, the slowest of all.
        let slowest = |near: bool| {
            let all = || links.iter().copied().enumerate();
            let own = all().filter(|(rank, _)| is_near(*rank) == near);
            let [own, all] = [own.collect(), all().collect::<Vec<_>>()];
            let known = if own.is_empty() { all } else { own };
            (known.into_iter()).fold(Link::default(), |slowest, (_, link)| {
                slowest.or_slower(link)
            })
        };
        let place = |&rank: &usize| [self.host(rank), rank.to_string()];
        let places: Vec<_> = process_of_device.iter().map(place).collect();
        let links = [within.unwrap_or_default(), slowest(true), slowest(false)];
        LinkLevel::of_places(&places, links)
    }

    /// What this process did, unless it failed in another one.
    ///
    /// # Errors
    ///
    /// The own one, or [`ProcessError::Failed`] with that of another process.
    pub fn agree<T, E: From<ProcessError> + ToString>(&self, own: Result<T, E>) -> Result<T, E> {
        self.tell(own, |_| ()).map(|(own, _)| own)
    }

    /// The same, and what each process tells the others of it, by rank.
    pub(crate) fn tell<T, S, E>(
        &self,
        own: Result<T, E>,
        told: impl FnOnce(&T) -> S,
    ) -> Result<(T, Vec<S>), E>
    where
        S: Serialize + DeserializeOwned,
        E: From<ProcessError> + ToString,
    {
        let Some(comm) = &self.0 else {
            let own = own?;
            let told = told(&own);
            return Ok((own, vec![told]));
        };
        let said = own.as_ref().map(told).map_err(ToString::to_string);
        let all: Result<Vec<Result<S, String>>, _> = gather(comm, &said, Wait::WhileAllLive);
        let own = own?;
        let all = all?
            .into_iter()
            .enumerate()
            .map(|(rank, said)| said.map_err(|reason| ProcessError::failed(comm, rank, reason)));
        Ok((own, all.collect::<Result<_, _>>()?))
    }

    /// Does something in the first process. `None` in the others.
    ///
    /// # Errors
    ///
    /// If it fails: in the first process as it is, in the others as [`ProcessError::Failed`].
    pub fn first<T, E: From<ProcessError> + ToString>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        self.agree(self.is_first().then(work).transpose())
    }

    /// What the first process does, for all.
    ///
    /// # Errors
    ///
    /// As [`first`](Self::first).
    pub fn by_first<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Clone + Serialize + DeserializeOwned,
        E: From<ProcessError> + ToString,
    {
        let own = self.is_first().then(work).transpose();
        // A list, since MessagePack has no option in an option.
        let (own, all) = self.tell(own, |own| own.iter().cloned().collect::<Vec<T>>())?;
        let first = own.or_else(|| all.into_iter().flatten().next());
        first
            .ok_or_else(|| ProcessError::Unreadable("the first process said nothing".into()).into())
    }
}
