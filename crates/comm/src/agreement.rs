//! What ranks agree on before and after each run: all make the same call, and a run succeeds in all or in none.
//!
//! Before a run they meet: a gather of what each is about to do. A run has a number, the same in all ranks,
//! which its messages name. A rank whose part of a run has failed tells the others at once, so that they do not
//! wait for what it would have sent. Then it takes part in the gather at the end of the run, as all others do.
//! That gather alone decides. What arrives in between is the business of `runs`.

mod runs;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use self::runs::{Kind, Runs};
use crate::{
    communicator::Communicator,
    error::{CommError, Peer},
    gather::{Wait, gather},
    process_error::ProcessError,
    sync::Arc,
};

/// What all ranks must agree on: names and values.
pub type Terms = Vec<(String, String)>;

/// Ranks that make the same calls and end each run together.
///
/// A pipeline has one. The messages of its channel are those of the agreement.
///
/// ```
/// use std::{error::Error, sync::Arc, thread::spawn};
/// use stovepipe_comm::{Agreement, RunFailure};
///
/// type BoxedError = Box<dyn Error + Send + Sync>;
///
/// let ranks = stovepipe_comm::local(2, None)?.into_iter().map(|comm| {
///     spawn(move || {
///         let is_first = comm.rank() == 0;
///         let take = |from, parts| Ok(println!("{from} sent {parts:?}"));
///         let cancel = |run, error| println!("run {run} ends: {error}");
///         let agreement = Agreement::new((Arc::new(comm), 0), take, cancel);
///         let terms = vec![("the seed".to_owned(), "7".to_owned())];
///         agreement.meet(Ok::<_, BoxedError>(()), |()| (terms, ()))?;
///         agreement.begin();
///         let own = if is_first { Ok(0.5) } else { Err(RunFailure::Failed("no memory".into())) };
///         agreement.end::<f64, BoxedError>(own).map(drop).map_err(|failure| match failure {
///             RunFailure::Failed(error) | RunFailure::Cancelled(error) => error,
///             RunFailure::Stopped => "stopped".into(),
///         })
///     })
/// });
/// let ends: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
/// let errors = ends.into_iter().map(|end| end.unwrap_err().to_string());
/// assert!(errors.eq(["rank 1 on localhost failed: no memory", "no memory"]));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Agreement {
    comm: Arc<Communicator>,
    channel: u32,
    runs: Arc<Runs>,
}

/// Why a run failed in this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFailure<E> {
    /// This rank's part failed or, if that succeeded, another rank's.
    Failed(E),
    /// A stop was requested, here or in another rank.
    Stopped,
    /// This rank's part was cancelled.
    Cancelled(E),
}

/// What a rank tells the others at the end of a run.
#[derive(Serialize, Deserialize)]
enum Ended<T> {
    Succeeded(T),
    Failed(String),
    /// A stop was requested there.
    Stopped,
    /// Another rank had said that it failed.
    Cancelled,
}

impl Agreement {
    /// Takes the messages of a channel of a communicator, after an earlier agreement if there was one. Ranks
    /// [`meet`](Self::meet) before one of them sends.
    ///
    /// `take` gets what other ranks [`send`](Self::send) in a run; its error says why that cannot be read,
    /// and ends the run. `cancel` is called with a run's number if another rank has failed, has left, or
    /// sent what cannot be read. Both are called as the
    /// [sink of a communicator](Communicator::set_sink), or by [`begin`](Self::begin), and may not call
    /// the agreement.
    pub fn new(
        (comm, channel): (Arc<Communicator>, u32),
        take: impl Fn(Peer, Vec<Vec<u8>>) -> Result<(), String> + Send + Sync + 'static,
        cancel: impl Fn(u64, ProcessError) + Send + Sync + 'static,
    ) -> Self {
        let runs = Arc::new(Runs::new(&comm, Box::new(take), Box::new(cancel)));
        let sink = runs.clone();
        comm.set_sink(channel, move |arrived| sink.take(arrived));
        Self {
            comm,
            channel,
            runs,
        }
    }

    /// The communicator.
    #[must_use]
    pub fn comm(&self) -> &Arc<Communicator> {
        &self.comm
    }

    /// Waits for all ranks, and checks that they agree. Each also tells all what only it knows; that is
    /// returned by rank.
    ///
    /// # Errors
    ///
    /// If one rank has failed so far, all fail: this one with its own error, if it has one. If terms
    /// differ, all fail.
    pub fn meet<T, K, E: From<ProcessError> + ToString>(
        &self,
        own: Result<T, E>,
        terms: impl FnOnce(&T) -> (Terms, K),
    ) -> Result<(T, Vec<K>), E>
    where
        K: Serialize + DeserializeOwned,
    {
        let said = own.as_ref().map(terms).map_err(ToString::to_string);
        let all: Result<Vec<Result<(Terms, K), String>>, _> =
            gather(&self.comm, &said, Wait::ForTheSameCall);
        let own = own?;
        let ours = said.map(|(ours, _)| ours).unwrap_or_default();
        let told = all?.into_iter().enumerate().map(|(rank, theirs)| {
            let (theirs, told) = theirs.map_err(|reason| self.failed(rank, reason))?;
            self.compare(&ours, rank, &theirs)?;
            Ok::<_, ProcessError>(told)
        });
        let told = told.collect::<Result<_, _>>()?;
        Ok((own, told))
    }

    /// An error that names the first term with another value in another rank.
    fn compare(&self, ours: &Terms, rank: usize, theirs: &Terms) -> Result<(), ProcessError> {
        fn value<'a>(terms: &'a Terms, what: &str) -> &'a str {
            let term = terms.iter().find(|(name, _)| name == what);
            term.map_or("missing", |(_, value)| value)
        }
        let mut names = ours.iter().chain(theirs).map(|(name, _)| name);
        let differs = names.find(|name| value(ours, name) != value(theirs, name));
        differs.map_or(Ok(()), |what| {
            Err(ProcessError::Differs {
                what: what.clone(),
                rank,
                host: self.comm.host(rank).unwrap_or_default(),
                theirs: value(theirs, what).to_owned(),
                ours: value(ours, what).to_owned(),
            })
        })
    }

    /// A run begins, after all have met. Returns its number, which ascends. Messages for it that have
    /// come early are taken now. All ranks begin the run, and [`end`](Self::end) it.
    pub fn begin(&self) -> u64 {
        let run = self.comm.next_run();
        self.runs.begin(run);
        run
    }

    /// The number of the last run that has begun.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.runs.last()
    }

    /// Sends a message for a run; never waits. It is taken while that run lasts at the other rank: it waits
    /// there for the run to begin, and is dropped after its end.
    ///
    /// # Errors
    ///
    /// As [`Communicator::send`].
    pub fn send(&self, run: u64, to: usize, parts: Vec<Vec<u8>>) -> Result<(), CommError> {
        let tag = Kind::Message.tag(run);
        self.comm.send(to, self.channel, tag, parts)
    }

    /// Sends a message for the next run; never waits. If it is sent before ranks meet,
    /// [`take_ahead`](Self::take_ahead) finds it after that.
    ///
    /// # Errors
    ///
    /// As [`Communicator::send`].
    pub fn send_ahead(&self, to: usize, parts: Vec<Vec<u8>>) -> Result<(), CommError> {
        let tag = Kind::Ahead.tag(self.run());
        self.comm.send(to, self.channel, tag, parts)
    }

    /// The parts of the messages for the next run that were sent before it. Those of a rank are in its order.
    #[must_use]
    pub fn take_ahead(&self) -> Vec<Vec<Vec<u8>>> {
        self.runs.take_ahead()
    }

    /// Tells all ranks how this one's part of the run ended, and waits for them as long as all live.
    /// Returns the results of all, by rank.
    ///
    /// # Errors
    ///
    /// If a part failed, the run fails in all ranks: in those with an error of their own as that, in the
    /// others as [`ProcessError::Failed`]. A stop is returned as a stop by all whose part did not fail.
    /// If the job ends while ranks wait here, some may know that the run succeeded. No run follows then.
    pub fn end<T, E>(&self, own: Result<T, RunFailure<E>>) -> Result<Vec<T>, RunFailure<E>>
    where
        T: Serialize + DeserializeOwned,
        E: From<ProcessError> + ToString,
    {
        let (said, own) = match own {
            Ok(result) => (Ended::Succeeded(result), None),
            Err(failure) => (self.tell(&failure), Some(failure)),
        };
        let all = gather(&self.comm, &said, Wait::WhileAllLive);
        self.runs.end();
        match own {
            None => self.results(all).map_err(|failure| failure.map(E::from)),
            // Its reason is the stop.
            Some(RunFailure::Cancelled(_))
                if all.is_ok_and(|all| all.iter().any(Ended::<T>::is_stopped)) =>
            {
                Err(RunFailure::Stopped)
            }
            Some(own) => Err(own),
        }
    }

    /// Tells the other ranks at once that the run has failed, unless they know that from another rank.
    fn tell<T, E: ToString>(&self, failure: &RunFailure<E>) -> Ended<T> {
        let (ended, reason) = match failure {
            RunFailure::Cancelled(_) if self.runs.is_failed_elsewhere() => return Ended::Cancelled,
            RunFailure::Failed(error) | RunFailure::Cancelled(error) => {
                (Ended::Failed(error.to_string()), error.to_string())
            }
            RunFailure::Stopped => (Ended::Stopped, "stopped".to_owned()),
        };
        let tag = Kind::Failed.tag(self.run());
        for rank in (0..self.comm.size()).filter(|&rank| rank != self.comm.rank()) {
            // If it fails, so does the gather.
            let parts = vec![reason.clone().into_bytes()];
            let _ = self.comm.send(rank, self.channel, tag, parts);
        }
        ended
    }

    /// The results of all ranks, if all have one.
    fn results<T>(
        &self,
        all: Result<Vec<Ended<T>>, ProcessError>,
    ) -> Result<Vec<T>, RunFailure<ProcessError>> {
        let mut results = Vec::new();
        for (rank, ended) in all.map_err(RunFailure::Failed)?.into_iter().enumerate() {
            match ended {
                Ended::Succeeded(result) => results.push(result),
                Ended::Failed(reason) => return Err(RunFailure::Failed(self.failed(rank, reason))),
                Ended::Stopped => return Err(RunFailure::Stopped),
                Ended::Cancelled => {} // another rank says why
            }
        }
        Ok(results)
    }

    fn failed(&self, rank: usize, reason: String) -> ProcessError {
        ProcessError::failed(&self.comm, rank, reason)
    }
}

impl<T> Ended<T> {
    fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped)
    }
}

impl<E> RunFailure<E> {
    fn map<F>(self, change: impl FnOnce(E) -> F) -> RunFailure<F> {
        match self {
            Self::Failed(error) => RunFailure::Failed(change(error)),
            Self::Stopped => RunFailure::Stopped,
            Self::Cancelled(error) => RunFailure::Cancelled(change(error)),
        }
    }
}
