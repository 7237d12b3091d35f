//! Ranks in one process.
//!
//! Each rank has a thread, which delivers what the others put into its channel. The channel outlives the
//! rank in the hands of the others, so the rank's thread ends at an `End` of its own. If links have a
//! speed, each has a thread in between.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    communicator::Communicator,
    error::CommError,
    slow_link::SlowLink,
    sync::{
        mpsc::{Receiver, Sender, channel},
        thread::{Builder, JoinHandle},
    },
    transport::{Packet, Port, Transport},
};

struct Local {
    rank: usize,
    channels: Vec<Sender<Event>>,
    /// By rank, where messages take their time: empty if links have no speed.
    slow: Vec<Option<SlowLink<Event>>>,
    thread: Option<JoinHandle<()>>,
}

enum Event {
    Packet { from: usize, packet: Packet },
    End,
}

/// The communicators of `size` ranks in this process, in rank order; [`Communicator`] has examples.
/// `limit` is how long a gather waits for others.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn local(size: usize, limit: Option<Duration>) -> io::Result<Vec<Communicator>> {
    local_on(&vec!["localhost"; size], limit)
}

/// [`local`] with a rank for each of these hosts, to try what several machines would do.
///
/// ```
/// let ranks = stovepipe_comm::local_on(&["a", "a", "b"], None)?;
/// assert_eq!(ranks[0].host(2).as_deref(), Some("b"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// If a thread cannot be started.
pub fn local_on(hosts: &[&str], limit: Option<Duration>) -> io::Result<Vec<Communicator>> {
    start(hosts, limit, None)
}

/// [`local`] over links of so many bytes a second, to try what a network would do.
///
/// Each rank has a link to each other one, in each direction, and links do not slow each other down. A
/// message arrives when all its bytes have; headers and messages to oneself take no time. A rank that
/// leaves waits until what it sent has arrived.
///
/// ```
/// let gigabit = 125_000_000;
/// let ranks = stovepipe_comm::local_throttled(2, gigabit, None)?;
/// assert_eq!(ranks.len(), 2);
/// assert!(stovepipe_comm::local_throttled(2, 0, None).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// If links have no bytes a second, or a thread cannot be started.
pub fn local_throttled(
    size: usize,
    bytes_per_second: u64,
    limit: Option<Duration>,
) -> io::Result<Vec<Communicator>> {
    if bytes_per_second == 0 {
        let message = "a link needs at least one byte a second";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    start(&vec!["localhost"; size], limit, Some(bytes_per_second))
}

fn start(
    hosts: &[&str],
    limit: Option<Duration>,
    bytes_per_second: Option<u64>,
) -> io::Result<Vec<Communicator>> {
    let (channels, events): (Vec<_>, Vec<_>) = hosts.iter().map(|_| channel()).unzip();
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let rank = |(rank, events)| {
        let port = Port::new(rank, hosts.clone(), limit);
        let (delivers, channels) = (port.clone(), channels.clone());
        let slow = bytes_per_second.map(|speed| slow_links(rank, &channels, speed));
        let mut transport = Local {
            rank,
            channels,
            slow: slow.transpose()?.unwrap_or_default(),
            thread: None,
        };
        let channels = transport.channels.clone();
        let thread = Builder::new().name(format!("rank {rank}"));
        let thread = thread.spawn(move || serve(&delivers, &events, &channels))?;
        transport.thread = Some(thread);
        Ok(Communicator::new(port, Box::new(transport)))
    };
    events.into_iter().enumerate().map(rank).collect()
}

/// A rank's links to each rank; `None` to itself.
fn slow_links(
    from: usize,
    channels: &[Sender<Event>],
    bytes_per_second: u64,
) -> io::Result<Vec<Option<SlowLink<Event>>>> {
    let link = |(to, channel): (usize, &Sender<Event>)| {
        if to == from {
            return Ok(None);
        }
        let channel = channel.clone();
        let deliver = move |event| drop(channel.send(event)); // the rank may have left
        let name = format!("link {from} to {to}");
        SlowLink::start(name, bytes_per_second, deliver).map(Some)
    };
    channels.iter().enumerate().map(link).collect()
}

fn serve(port: &Port, events: &Receiver<Event>, channels: &[Sender<Event>]) {
    let from = port.rank();
    while let Ok(Event::Packet {
        from: sender,
        packet,
    }) = events.recv()
    {
        let deliver = AssertUnwindSafe(|| port.deliver(sender, packet));
        if catch_unwind(deliver).is_err() {
            let (peer, reason) = (
                port.peer(from),
                "what takes its messages panicked".to_owned(),
            );
            let packet = Packet::Abort(reason.clone());
            let _ = port.fail(CommError::Aborted { peer, reason });
            for channel in channels {
                let packet = packet.clone();
                let _ = channel.send(Event::Packet { from, packet });
            }
        }
    }
}

impl Transport for Local {
    fn send(&self, to: usize, packet: Packet) {
        let bytes = packet.bytes();
        let event = Event::Packet {
            from: self.rank,
            packet,
        };
        match self.slow.get(to) {
            Some(Some(link)) => link.send(bytes, event),
            // An error says that the rank has left.
            _ => drop(self.channels[to].send(event)),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.slow.clear();
        let _ = self.channels[self.rank].send(Event::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
