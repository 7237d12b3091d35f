//! The thread that owns MPI.
//!
//! It takes packets from the queue in batches and posts the messages of a batch at once. Until all of them
//! are complete it keeps receiving, so two ranks that send to each other never wait for each other. It
//! only receives what a sender has posted, so it waits for no rank in particular. Between looks at MPI
//! it backs off.
//!
//! An all-reduce is posted, too. While it is pending, the thread does all else, and posts those of other
//! groups inside: its ranks have agreed to post it, so it ends without any of them doing anything else.
//!
//! A request that is not complete must not be dropped. So after a failure the thread goes nowhere: it
//! tells the other ranks, waits until the owner has dropped the communicator, and aborts the job.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::{Receiver, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use mpi::{
    collective::SystemOperation,
    point_to_point::Message,
    request::{Request, Scope, scope},
    topology::{Process, SimpleCommunicator},
    traits::{Communicator, CommunicatorCollectives, Destination, Equivalence, Group, Source},
};
use stovepipe_comm::{
    CommError, Peer,
    transport::{GroupId, Numbers, Packet, Port, TakeSums},
};

use crate::{
    backoff::Backoff,
    watch::watched,
    wire::{Partial, Spare, encode, pieces, ready, ready_ranks, sign},
};

/// A batch ends at so many packets or bytes.
const BATCH_PACKETS: usize = 64;
const BATCH_BYTES: usize = 16 << 20;
/// How long all ranks have to say why the job ended, before one aborts it.
const NOTICE: Duration = Duration::from_secs(2);
/// How long the owner has to print its error and drop the communicator.
const GRACE: Duration = Duration::from_secs(10);
/// A rank that is silent for longer counts as dead: this thread does nothing but talk.
const SILENCE: Duration = Duration::from_secs(30);
/// It says so often within that time that it is alive.
const SIGNS: u32 = 8;
/// Everything has one tag, so that a rank's messages have one order.
const TAG: i32 = 0;
/// What Open MPI sends to make a group has the tag that it is given: it must not be taken for a packet.
const GROUP_TAG: i32 = 1;
/// MPI counts numbers in `i32`: more are added up in several pieces.
const MOST_NUMBERS: usize = 1 << 28;

/// Ranks, and the buffers that they get.
type Batch = Vec<(usize, Vec<Vec<u8>>)>;

/// What the thread is asked to do.
pub(crate) enum Job {
    Send(usize, Packet),
    MakeGroup(GroupId, Vec<usize>),
    AllReduce(GroupId, Numbers, TakeSums),
}

pub(crate) struct Engine<'a> {
    world: &'a SimpleCommunicator,
    port: Port,
    queue: Receiver<Job>,
    /// The communicator was dropped, and what it sent was taken.
    is_closed: bool,
    /// By rank: a packet whose pieces are to come.
    partial: Vec<Option<Partial>>,
    /// In the order in which they were made, and are freed.
    groups: BTreeMap<GroupId, SimpleCommunicator>,
    /// By rank: the groups that it is ready to make.
    ready: Vec<VecDeque<Vec<usize>>>,
    spare: Spare,
    /// When this rank last said that it is alive.
    signed: Option<Instant>,
    /// By rank: when something last came from it.
    heard: Vec<Instant>,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(world: &'a SimpleCommunicator, port: Port, queue: Receiver<Job>) -> Self {
        let partial = (0..port.size()).map(|_| None).collect();
        let ready = vec![VecDeque::new(); port.size()];
        let heard = vec![Instant::now(); port.size()];
        Self {
            world,
            port,
            queue,
            is_closed: false,
            partial,
            groups: BTreeMap::new(),
            ready,
            spare: Spare::default(),
            signed: None,
            heard,
        }
    }

    /// Sends and receives until the communicator is dropped and all other ranks have left.
    pub(crate) fn run(mut self) {
        let guard = AbortOnPanic(self.world);
        let mut backoff = Backoff::new();
        while !self.is_closed || !self.port.present().is_empty() {
            if self.turn() {
                backoff.reset();
            } else if self.is_closed {
                self.leave(&backoff);
            } else {
                // What is queued meanwhile wakes this thread.
                backoff.wait(thread::park_timeout);
            }
        }
        std::mem::forget(guard);
    }

    /// Does what is queued and receives what has come. Returns whether there was anything.
    fn turn(&mut self) -> bool {
        self.sign();
        let (batch, then) = self.next_batch();
        let is_asked = !batch.is_empty() || then.is_some();
        self.send(&batch);
        let sent = batch.into_iter().flat_map(|(_, buffers)| buffers);
        self.spare.keep(sent);
        match then {
            Some(Job::MakeGroup(group, ranks)) => self.make_group(group, &ranks),
            Some(Job::AllReduce(group, numbers, take)) => {
                let sums = match numbers {
                    Numbers::F32(own) => Numbers::F32(self.all_reduce(group, &own)),
                    Numbers::F64(own) => Numbers::F64(self.all_reduce(group, &own)),
                };
                take(sums);
            }
            Some(Job::Send(..)) | None => {}
        }
        let has_received = self.receive();
        self.check();
        is_asked || has_received
    }

    /// Tells the others that this rank is alive, if they have to hear it.
    fn sign(&mut self) {
        if self.is_sign_due() {
            let sign = |to| (to, vec![sign().to_vec()]);
            self.send(&self.present().map(sign).collect::<Batch>());
        }
    }

    /// The next packets for other ranks, as buffers, and what is to be done after they are sent. Packets for
    /// this rank are delivered.
    fn next_batch(&mut self) -> (Batch, Option<Job>) {
        let (mut batch, mut bytes) = (Batch::new(), 0);
        while batch.len() < BATCH_PACKETS && bytes < BATCH_BYTES {
            match self.queue.try_recv() {
                Ok(Job::Send(to, packet)) if to == self.port.rank() => {
                    self.port.deliver(to, packet);
                }
                Ok(Job::Send(to, packet)) => {
                    let buffers = encode(packet);
                    bytes += buffers.iter().map(Vec::len).sum::<usize>();
                    batch.push((to, buffers));
                }
                Ok(job) => return (batch, Some(job)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        (batch, None)
    }

    /// Makes a group's communicator. MPI's call blocks and delivers no message meanwhile. So its ranks first
    /// tell each other that they come next to this call, and send nothing else until it is done.
    fn make_group(&mut self, group: GroupId, ranks: &[usize]) {
        let others = ranks.iter().filter(|rank| **rank != self.port.rank());
        let others: Vec<_> = others.copied().collect();
        let own = |to: &usize| (*to, vec![ready(ranks)]);
        self.send(&others.iter().map(own).collect::<Batch>());
        let backoff = Backoff::new();
        while let Some(slowest) = others.iter().find(|rank| self.ready[**rank].is_empty()) {
            self.limit(*slowest, &backoff);
            self.check();
            self.sign();
            if !self.receive() {
                backoff.wait(thread::sleep);
            }
        }
        for other in others {
            if self.ready[other]
                .pop_front()
                .is_none_or(|theirs| theirs != ranks)
            {
                self.fail(CommError::Unreadable(self.port.peer(other)));
            }
        }
        let reason = format!("the ranks {ranks:?} did not make a group together");
        let ranks: Vec<_> = ranks.iter().map(|rank| as_rank(*rank)).collect();
        let members = self.world.group().include(&ranks);
        let made = watched(self.port.limit(), reason, || {
            self.world.split_by_subgroup_with_tag(&members, GROUP_TAG)
        });
        self.groups.extend(made.map(|made| (group, made)));
    }

    /// The sums over a group's ranks.
    fn all_reduce<T: Equivalence + Clone + Default>(
        &mut self,
        group: GroupId,
        own: &[T],
    ) -> Vec<T> {
        let mut sums = vec![T::default(); own.len()];
        scope(|scope| {
            let group = &self.groups[&group];
            let pieces = own.chunks(MOST_NUMBERS).zip(sums.chunks_mut(MOST_NUMBERS));
            let post = |(own, sums)| {
                let sum = SystemOperation::sum();
                ((), group.immediate_all_reduce_into(scope, own, sums, sum))
            };
            let mut requests: Vec<_> = pieces.map(post).collect();
            while !requests.is_empty() {
                // MPI adds up only while it is called, and all ranks do now. A turn ends the job if one is
                // silent.
                if !self.turn() {
                    thread::yield_now();
                }
                requests = pending(requests);
            }
        });
        sums
    }

    /// Whether the others have to hear that this rank is alive. Then it is also time to see that they are: ends
    /// the job if one is silent.
    fn is_sign_due(&mut self) -> bool {
        let Some(limit) = self.port.limit().map(|limit| limit.min(SILENCE)) else {
            return false;
        };
        let is_due = (self.signed).is_none_or(|signed| signed.elapsed() >= limit / SIGNS);
        if is_due {
            self.signed = Some(Instant::now());
            let silent = |peer: &Peer| self.heard[peer.rank].elapsed() > limit;
            let peers: Vec<_> = self.port.present().into_iter().filter(silent).collect();
            if !peers.is_empty() {
                self.fail(CommError::Missing { peers, limit });
            }
        }
        is_due
    }

    fn present(&self) -> impl Iterator<Item = usize> + use<> {
        self.port.present().into_iter().map(|peer| peer.rank)
    }

    /// Posts a batch, and receives until it is complete.
    fn send(&mut self, batch: &[(usize, Vec<Vec<u8>>)]) {
        let sign = sign();
        scope(|scope| {
            let buffers = batch.iter().flat_map(|(to, buffers)| {
                let pieces = buffers.iter().flat_map(|buffer| pieces(buffer));
                pieces.map(move |piece| (*to, piece))
            });
            let post = |(to, piece)| {
                let to_process = process(self.world, to);
                (to, to_process.immediate_send_with_tag(scope, piece, TAG))
            };
            let mut requests: Vec<_> = buffers.map(post).collect();
            let mut signs = Vec::new();
            let mut backoff = Backoff::new();
            loop {
                let posted = requests.len();
                requests = pending(requests);
                signs = pending(signs);
                let Some((slowest, _)) = requests.first().or(signs.first()) else {
                    break;
                };
                if requests.len() < posted {
                    backoff.reset();
                }
                self.limit(*slowest, &backoff);
                self.check();
                if self.is_sign_due() {
                    signs.extend(self.present().map(|other| post((other, &sign[..]))));
                }
                if !self.receive() {
                    backoff.wait(thread::sleep);
                }
            }
        });
    }

    /// Receives one MPI message, if one has arrived. Returns whether it is more than a sign of life.
    fn receive(&mut self) -> bool {
        let any = self.world.any_process();
        let Some((message, status)) = any.immediate_matched_probe_with_tag(TAG) else {
            return false;
        };
        let from = status.source_rank().unsigned_abs() as usize;
        self.heard[from] = Instant::now();
        let length = status.count(u8::equivalent_datatype()).unsigned_abs() as usize;
        let partial = match self.partial[from].take() {
            None => {
                let mut head = vec![0; length];
                self.receive_into(&mut head, from, message);
                if head == sign() {
                    return false;
                }
                if let Some(ranks) = ready_ranks(&head) {
                    self.ready[from].push_back(ranks);
                    return true;
                }
                Partial::decode(&head, &mut self.spare)
            }
            Some(mut partial) => {
                let piece = partial.next_piece().filter(|piece| piece.len() == length);
                let received = piece.map(|piece| self.receive_into(piece, from, message));
                received.map(|()| partial)
            }
        };
        match partial {
            Some(partial) if partial.is_complete() => {
                self.port.deliver(from, partial.into_packet());
            }
            Some(partial) => self.partial[from] = Some(partial),
            None => self.fail(CommError::Unreadable(self.port.peer(from))),
        }
        true
    }

    /// Receives a message that its sender has posted.
    fn receive_into(&self, buffer: &mut [u8], from: usize, message: Message) {
        scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, buffer);
            let backoff = Backoff::new();
            while let Err(pending) = request.test() {
                request = pending;
                self.limit(from, &backoff);
                self.check();
                backoff.wait(thread::sleep);
            }
        });
    }

    /// Waits for the other ranks to leave, too.
    fn leave(&self, backoff: &Backoff) {
        let limit = self.port.limit().filter(|limit| backoff.idle() > *limit);
        if let Some(limit) = limit {
            let peers = self.port.present();
            self.fail(CommError::Missing { peers, limit });
        }
        backoff.wait(thread::sleep);
    }

    /// Ends the job if a rank has exchanged no data for too long.
    fn limit(&self, rank: usize, backoff: &Backoff) {
        if let Some(limit) = self.port.limit().filter(|limit| backoff.idle() > *limit) {
            let peer = self.port.peer(rank);
            self.fail(CommError::Stalled { peer, limit });
        }
    }

    fn fail(&self, error: CommError) -> ! {
        let error = self.port.fail(error).unwrap_or_else(|first| first);
        self.end_job(&error)
    }

    /// Ends the job if a call or another rank has said so.
    fn check(&self) {
        if let Some(error) = self.port.failure() {
            self.end_job(&error);
        }
    }

    /// Tells this rank and the others, gives them time to say so, and aborts the job.
    fn end_job(&self, error: &CommError) -> ! {
        let own = self.port.rank();
        let reason = match error {
            CommError::Aborted { peer, reason } if peer.rank == own => reason.clone(),
            error => error.to_string(),
        };
        self.port.deliver(own, Packet::Abort(reason.clone()));
        let is_news = !matches!(error, CommError::Aborted { peer, .. } if peer.rank != own);
        let (began, notices) = (Instant::now(), encode(Packet::Abort(reason)));
        scope(|scope| {
            let others = self.port.others().filter(|_| is_news);
            let send = |other| {
                let notices = notices.iter().map(move |notice| (other, notice));
                notices.map(|(other, notice)| {
                    process(self.world, other).immediate_send_with_tag(scope, &notice[..], TAG)
                })
            };
            let mut requests: Vec<_> = others.flat_map(send).collect();
            let mut is_closed = self.is_closed;
            loop {
                let pending = requests.into_iter();
                requests = pending.filter_map(|request| request.test().err()).collect();
                while !is_closed {
                    match self.queue.try_recv() {
                        Ok(_) => {}
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => is_closed = true,
                    }
                }
                let is_told = self.port.size() == 1 || began.elapsed() > NOTICE;
                let is_late = began.elapsed() > GRACE;
                if is_closed && is_told || is_late {
                    // Nobody else can say it.
                    if self.is_closed || is_late {
                        eprintln!("{}: {error}", self.port.peer(own));
                    }
                    self.world.abort(1);
                }
                thread::sleep(Duration::from_millis(1));
            }
        })
    }
}

/// Those that are not complete.
fn pending<'a, K, B: ?Sized, S: Scope<'a>>(
    requests: Vec<(K, Request<'a, B, S>)>,
) -> Vec<(K, Request<'a, B, S>)> {
    let requests = requests.into_iter();
    let pending = requests.filter_map(|(key, request)| Some((key, request.test().err()?)));
    pending.collect()
}

fn process(world: &SimpleCommunicator, rank: usize) -> Process<'_> {
    world.process_at_rank(as_rank(rank))
}

/// Ranks come from MPI, as `i32`.
fn as_rank(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

/// A panic here would leave the other ranks waiting.
struct AbortOnPanic<'a>(&'a SimpleCommunicator);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort(1);
    }
}
