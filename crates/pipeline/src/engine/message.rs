//! What stages send each other, and the mailboxes for it.

use burn::{backend::ExecutionError, tensor::Device};
use stovepipe_runtime as runtime;

use crate::{
    api::error::{FailureCause, TransferKind},
    engine::{
        skips::{SkipGradients, SkipValues, Taking},
        values::{self, FlowGradients},
    },
    model::{
        flow::Flow,
        flows,
        packed::{PackError, Packed},
    },
};

/// The receiving end of a mailbox between stages.
pub(crate) type Inbox<M> = runtime::Inbox<Result<Arrived<M>, FailureCause>>;
pub(crate) type Queue<M> = runtime::Outbox<Result<Arrived<M>, FailureCause>>;

/// What is in a mailbox.
pub(crate) enum Arrived<M> {
    Here(M),
    /// From another process; the receiver unpacks it.
    Packed(Packed),
}

/// What a stage sends to another for a micro-batch.
pub(crate) trait Message: Send + Sized + 'static {
    const KIND: TransferKind;

    fn to_device(self, device: &Device) -> Self;

    /// Waits until it has been computed.
    fn wait(&self) -> Result<(), ExecutionError>;

    /// Appends what it consists of, for another process.
    fn pack(self, into: &mut Packed) -> Result<(), PackError>;

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError>;
}

impl<F: Flow> Message for F {
    const KIND: TransferKind = TransferKind::Values;

    fn to_device(self, device: &Device) -> Self {
        flows::to_device(self, device)
    }

    fn wait(&self) -> Result<(), ExecutionError> {
        values::wait(self)
    }

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        Flow::pack(self, into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        Flow::unpack(from, device)
    }
}

impl Message for FlowGradients {
    const KIND: TransferKind = TransferKind::Gradients;

    fn to_device(self, device: &Device) -> Self {
        self.moved_to(device)
    }

    fn wait(&self) -> Result<(), ExecutionError> {
        FlowGradients::wait(self)
    }

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        self.pack(into)
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        Self::unpack(from, device)
    }
}

impl<F: Flow> Message for SkipValues<F> {
    const KIND: TransferKind = TransferKind::Skips;

    fn to_device(self, device: &Device) -> Self {
        let moved = |(skip, value)| (skip, flows::to_device(value, device));
        self.into_iter().map(moved).collect()
    }

    fn wait(&self) -> Result<(), ExecutionError> {
        self.values().try_for_each(values::wait)
    }

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        into.push_number(self.len());
        self.into_iter().try_for_each(|(skip, value)| {
            into.push_number(skip);
            value.pack(into)
        })
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        let length = from.number()?;
        (0..length)
            .map(|_| Ok((from.number()?, F::unpack(from, device)?)))
            .collect()
    }
}

impl Message for SkipGradients {
    const KIND: TransferKind = TransferKind::SkipGradients;

    fn to_device(self, device: &Device) -> Self {
        let moved = |(taking, gradients): (_, FlowGradients)| (taking, gradients.moved_to(device));
        self.into_iter().map(moved).collect()
    }

    fn wait(&self) -> Result<(), ExecutionError> {
        self.values().try_for_each(FlowGradients::wait)
    }

    fn pack(self, into: &mut Packed) -> Result<(), PackError> {
        into.push_number(self.len());
        self.into_iter().try_for_each(|(taking, gradients)| {
            into.push_number(taking.skip);
            into.push_number(taking.taker);
            gradients.pack(into)
        })
    }

    fn unpack(from: &mut Packed, device: &Device) -> Result<Self, PackError> {
        let length = from.number()?;
        let one = |_| {
            let (skip, taker) = (from.number()?, from.number()?);
            Ok((Taking { skip, taker }, FlowGradients::unpack(from, device)?))
        };
        (0..length).map(one).collect()
    }
}
