//! Queues, mailboxes and cancellation, in all orders.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    cancel::CancelSource,
    checks::{Count, in_all_orders, in_many_orders, panic_quietly},
    mailbox::{Cancelled, mailbox},
    queue::{Disconnected, ReceiveError, queue},
    sync::{Deadline, thread},
};

#[test]
fn a_message_is_received_once_and_then_the_queue_ends() {
    in_all_orders(|| {
        let (sender, receiver) = queue();
        thread::spawn(move || sender.send(1));
        assert_eq!(receiver.receive(), Ok(1));
        assert_eq!(receiver.receive(), Err(ReceiveError::Disconnected));
    });
    // The message ends the wait, not the end of its sender.
    in_all_orders(|| {
        let (sender, receiver) = queue();
        let thread = thread::spawn(move || (sender.send(1), sender));
        assert_eq!(receiver.receive(), Ok(1));
        let _ = thread.join();
    });
}

#[test]
fn what_two_threads_send_is_received_once_and_in_their_order() {
    in_many_orders(20_000, || {
        let (one, receiver) = queue();
        let other = one.clone();
        thread::spawn(move || [1, 2].map(|message| one.send(message)));
        thread::spawn(move || [3, 4].map(|message| other.send(message)));
        let received = [(); 4].map(|()| receiver.receive().ok());
        let place = |message| received.iter().position(|found| *found == Some(message));
        assert!(place(1).is_some() && place(1) < place(2));
        assert!(place(3).is_some() && place(3) < place(4));
        assert_eq!(receiver.receive(), Err(ReceiveError::Disconnected));
    });
}

#[test]
fn a_receive_ends_when_its_sender_panics() {
    in_all_orders(|| {
        let (sender, receiver) = queue::<()>();
        let thread = thread::spawn(move || {
            let holds_it = AssertUnwindSafe(move || {
                let _sender = sender;
                panic_quietly()
            });
            let _ = catch_unwind(holds_it);
        });
        assert_eq!(receiver.receive(), Err(ReceiveError::Disconnected));
        let _ = thread.join();
    });
}

#[test]
fn a_message_that_nobody_receives_is_dropped() {
    in_all_orders(|| {
        let dropped = Count::default();
        let (sender, receiver) = queue();
        let message = dropped.on_drop();
        // The sender lives on.
        let thread = thread::spawn(move || (sender.send(message), sender));
        drop(receiver);
        let sent = thread.join();
        assert!(matches!(sent, Ok((Ok(()) | Err(Disconnected), _))));
        assert_eq!(dropped.get(), 1);
    });
}

#[test]
fn messages_wait_for_their_turn_in_a_mailbox() {
    in_many_orders(20_000, || {
        let (outbox, mut inbox) = mailbox();
        let mut cancel_source = CancelSource::new();
        let cancel = cancel_source.token();
        thread::spawn(move || {
            for micro_batch in [2, 0, 1] {
                let _ = outbox.send((micro_batch, micro_batch * 10));
            }
        });
        for micro_batch in 0..3 {
            assert_eq!(inbox.receive(micro_batch, &cancel), Ok(micro_batch * 10));
        }
        assert_eq!(inbox.receive(0, &cancel), Err(Cancelled));
    });
}

/// By a call of `cancel`, and by a dropped source.
#[test]
fn a_cancelled_receive_ends() {
    for explicitly in [true, false] {
        in_all_orders(move || {
            let (outbox, mut inbox) = mailbox::<()>();
            let mut cancel_source = CancelSource::new();
            let [_of_another, cancel] = [cancel_source.token(), cancel_source.token()];
            let caller = thread::spawn(move || {
                if explicitly {
                    cancel_source.cancel();
                }
            });
            assert_eq!(inbox.receive(0, &cancel), Err(Cancelled));
            assert!(cancel.is_cancelled());
            drop(outbox);
            let _ = caller.join();
        });
    }
}

/// The message, the end of the sender and the cancellation, all at once.
#[test]
fn a_receive_ends_whichever_comes_first() {
    in_many_orders(20_000, || {
        let (outbox, mut inbox) = mailbox();
        let mut cancel_source = CancelSource::new();
        let cancel = cancel_source.token();
        thread::spawn(move || outbox.send((0, "here")));
        thread::spawn(move || cancel_source.cancel());
        let received = inbox.receive(0, &cancel);
        assert!(matches!(received, Ok("here") | Err(Cancelled)));
    });
}

/// Two mailboxes, one parker: a worker with two stages, or one that receives values and gradients.
#[test]
fn one_token_serves_all_mailboxes_of_a_worker() {
    in_many_orders(20_000, || {
        let (left, mut from_left) = mailbox();
        let (right, mut from_right) = mailbox();
        let mut cancel_source = CancelSource::new();
        let cancel = cancel_source.token();
        thread::spawn(move || left.send((0, "left")));
        thread::spawn(move || right.send((0, "right")));
        assert_eq!(from_right.receive(0, &cancel), Ok("right"));
        assert_eq!(from_left.receive(0, &cancel), Ok("left"));
    });
}

#[test]
fn a_deadline_ends_a_wait_and_loses_nothing() {
    in_many_orders(4000, || {
        let (sender, receiver) = queue();
        let deadline = Deadline::after(std::time::Duration::ZERO);
        let (keep, kept) = queue::<()>();
        let thread = thread::spawn(move || {
            let _ = sender.send(1);
            // Lives until it is told to end.
            let _ = kept.receive();
        });
        let mut waits = 0;
        while receiver.receive_until(deadline) != Ok(1) {
            waits += 1;
            assert!(waits < 1000);
        }
        assert_eq!(
            receiver.receive_until(deadline),
            Err(ReceiveError::TimedOut)
        );
        drop(keep);
        let _ = thread.join();
        assert_eq!(
            receiver.receive_until(deadline),
            Err(ReceiveError::Disconnected)
        );
    });
}
