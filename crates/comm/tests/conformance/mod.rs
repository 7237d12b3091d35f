//! What every communicator must do. All ranks call `run`, each with its own.

use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use stovepipe_comm::{CommError, Communicator, Message};

const CASES: [fn(&Rank); 8] = [
    many_to_many,
    big_messages,
    many_small_messages,
    values_of_every_length,
    a_value_for_each_rank,
    a_busy_receiver,
    many_threads,
    several_channels,
];

/// That of all cases but the last.
const CHANNEL: u32 = 0;

struct Rank<'a> {
    comm: &'a Communicator,
    messages: Receiver<Message>,
}

pub fn run(comm: &Communicator) {
    let (sink, messages) = sink();
    comm.set_sink(CHANNEL, sink);
    let rank = Rank { comm, messages };
    for case in CASES {
        case(&rank);
        // All that was sent has arrived, and nothing is left; then the next case begins.
        comm.all_gather(Vec::new()).unwrap();
        assert_eq!(rank.messages.try_recv().ok(), None);
        comm.all_gather(Vec::new()).unwrap();
    }
}

impl Rank<'_> {
    fn next(&self) -> usize {
        (self.comm.rank() + 1) % self.comm.size()
    }

    fn send(&self, to: usize, tag: u64, lengths: &[usize]) {
        let parts = parts(self.comm.rank(), tag, lengths);
        self.comm.send(to, CHANNEL, tag, parts).unwrap();
    }

    /// The next message, which must be what its sender made.
    fn receive(&self, lengths: impl Fn(u64) -> Vec<usize>) -> (usize, u64) {
        let wait = Duration::from_secs(120);
        let message = self.messages.recv_timeout(wait).unwrap();
        let Message {
            from, tag, parts, ..
        } = message;
        let expected = self::parts(from, tag, &lengths(tag));
        assert!(parts == expected, "message {tag} of rank {from} is damaged");
        (from, tag)
    }

    /// Receives `count` messages of each of these ranks: once, in order.
    fn receive_all(&self, ranks: &[usize], count: u64, lengths: impl Fn(u64) -> Vec<usize>) {
        let mut seen = vec![0; self.comm.size()];
        for _ in 0..count * ranks.len() as u64 {
            let (from, tag) = self.receive(&lengths);
            assert_eq!(tag, seen[from], "of rank {from}");
            seen[from] += 1;
        }
        assert!(ranks.iter().all(|rank| seen[*rank] == count));
    }
}

/// Bytes that depend on sender, tag and place.
fn parts(from: usize, tag: u64, lengths: &[usize]) -> Vec<Vec<u8>> {
    let first = tag as usize * 7 + from * 31;
    let part = |(index, length): (usize, &usize)| {
        let cycle: Vec<u8> = (0..251)
            .map(|place| (first + index + place) as u8)
            .collect();
        cycle.into_iter().cycle().take(*length).collect()
    };
    lengths.iter().enumerate().map(part).collect()
}

/// Also to itself; with no part, empty parts, and parts around what fits into one MPI message's head.
fn many_to_many(rank: &Rank) {
    let lengths = |tag: u64| {
        let tag = tag as usize;
        let around = 4090 + tag % 10;
        [
            vec![],
            vec![0],
            vec![tag, 0, 3],
            vec![around],
            vec![around, 20_000],
        ][tag % 5]
            .clone()
    };
    let all: Vec<_> = (0..rank.comm.size()).collect();
    for tag in 0..500 {
        all.iter().for_each(|to| rank.send(*to, tag, &lengths(tag)));
    }
    rank.receive_all(&all, 500, lengths);
}

/// 100 MB, one part of it longer than the largest MPI message. All ranks send at the same time.
fn big_messages(rank: &Rank) {
    let lengths = |_| vec![70_000_000, 0, 30_000_000, 5];
    let from = (rank.comm.rank() + rank.comm.size() - 1) % rank.comm.size();
    rank.send(rank.next(), 0, &lengths(0));
    rank.send(rank.next(), 1, &lengths(1));
    rank.receive_all(&[from], 2, lengths);
}

fn many_small_messages(rank: &Rank) {
    const COUNT: u64 = 100_000;
    let lengths = |tag| vec![tag as usize % 32];
    let from = (rank.comm.rank() + rank.comm.size() - 1) % rank.comm.size();
    let before = rank.comm.bytes_sent();
    for tag in 0..COUNT {
        rank.send(rank.next(), tag, &lengths(tag));
    }
    let is_alone = rank.comm.size() == 1;
    let bytes: usize = (0..COUNT).flat_map(lengths).sum();
    let sent = if is_alone { 0 } else { bytes as u64 };
    assert_eq!(rank.comm.bytes_sent() - before, sent);
    rank.receive_all(&[from], COUNT, lengths);
}

fn values_of_every_length(rank: &Rank) {
    for (tag, length) in [0, 1, 4000, 4097, 70_000, 1 << 20].into_iter().enumerate() {
        let value = |rank| parts(rank, tag as u64, &[length / (rank + 1)]).remove(0);
        let values = rank.comm.all_gather(value(rank.comm.rank())).unwrap();
        assert!(values.into_iter().eq((0..rank.comm.size()).map(value)));
    }
}

fn a_value_for_each_rank(rank: &Rank) {
    let (own, size) = (rank.comm.rank(), rank.comm.size());
    let value = |from, to: usize| parts(from, to as u64, &[3000 * to * (from + 1)]).remove(0);
    for _ in 0..10 {
        let values = rank
            .comm
            .all_to_all((0..size).map(|to| value(own, to)).collect());
        assert!(
            values
                .unwrap()
                .into_iter()
                .eq((0..size).map(|from| value(from, own)))
        );
        // Both kinds share an order.
        assert_eq!(rank.comm.all_gather(vec![1]).unwrap(), vec![vec![1]; size]);
    }
}

/// Rank 0 looks at nothing for a while. What was sent to it meanwhile is there afterwards.
fn a_busy_receiver(rank: &Rank) {
    let others: Vec<_> = (1..rank.comm.size()).collect();
    let lengths = |_| vec![5_000_000, 10];
    if rank.comm.rank() == 0 {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            std::hint::spin_loop();
        }
        rank.receive_all(&others, 8, lengths);
    } else {
        (0..8).for_each(|tag| rank.send(0, tag, &lengths(tag)));
    }
}

fn many_threads(rank: &Rank) {
    let (comm, next) = (rank.comm, rank.next());
    thread::scope(|scope| {
        for first in [0, 1000, 2000] {
            scope.spawn(move || {
                for tag in first..first + 500 {
                    let parts = parts(comm.rank(), tag, &[tag as usize]);
                    comm.send(next, CHANNEL, tag, parts).unwrap();
                }
            });
        }
    });
    let received = (0..1500).map(|_| rank.receive(|tag| vec![tag as usize]).1);
    let received: Vec<_> = received.collect();
    for first in [0, 1000, 2000] {
        let own = |tag: &&u64| (first..first + 500).contains(*tag);
        assert!(received.iter().filter(own).copied().eq(first..first + 500));
    }
}

/// What came before there was a sink is kept for the sink of its channel.
fn several_channels(rank: &Rank) {
    let lengths = |tag| [tag as usize, 5000 * (tag as usize % 3)];
    let channels = [1, 7, u32::MAX];
    for tag in 0..100 {
        for channel in channels {
            let parts = parts(rank.comm.rank(), tag, &lengths(tag));
            rank.comm.send(rank.next(), channel, tag, parts).unwrap();
        }
    }
    rank.comm.all_gather(Vec::new()).unwrap();
    for channel in channels {
        let (sink, messages) = sink();
        rank.comm.set_sink(channel, sink);
        for tag in 0..100 {
            let wait = Duration::from_secs(120);
            let message = messages.recv_timeout(wait).unwrap();
            assert_eq!((message.channel, message.tag), (channel, tag));
            assert!(message.parts == parts(message.from, tag, &lengths(tag)));
        }
        assert_eq!(messages.try_recv().ok(), None);
    }
}

/// A sink, and what it takes.
fn sink() -> (
    impl Fn(Result<Message, CommError>) + Send + Sync,
    Receiver<Message>,
) {
    let (sender, messages) = channel();
    let sink = move |event: Result<_, _>| {
        if let Ok(message) = event {
            let _ = sender.send(message);
        }
    };
    (sink, messages)
}
