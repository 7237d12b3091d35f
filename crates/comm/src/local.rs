//! Ranks in one process.
//!
//! Each rank has a thread, which delivers what the others put into its channel. The channel outlives the
//! rank in the hands of the others, so the rank's thread ends at an `End` of its own.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    communicator::Communicator,
    error::CommError,
    sync::{
        mpsc::{Receiver, Sender, channel},
        thread::{Builder, JoinHandle},
    },
    transport::{Packet, Port, Transport},
};

struct Local {
    rank: usize,
    channels: Vec<Sender<Event>>,
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
    let (channels, events): (Vec<_>, Vec<_>) = hosts.iter().map(|_| channel()).unzip();
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let rank = |(rank, events)| {
        let port = Port::new(rank, hosts.clone(), limit);
        let (delivers, channels) = (port.clone(), channels.clone());
        let mut transport = Local {
            rank,
            channels,
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
        let from = self.rank;
        // An error says that the rank has left.
        let _ = self.channels[to].send(Event::Packet { from, packet });
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.channels[self.rank].send(Event::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
