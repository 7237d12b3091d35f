//! Tensors of parameters in a storage.

use std::collections::HashMap;

use burn::{
    module::ParamId,
    optim::{StateSink, StateSource},
    store::burn_pack::Scalar,
    tensor::{Bytes, DType, Shape, Tensor, TensorData},
};

use super::{error::OffloadError, storage::Storage};

/// What of a parameter lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::optimizer) enum Kept {
    /// What the optimizer keeps.
    State,
    /// The gradient of a mini-batch.
    Gradient,
    /// The sum of the gradients of several mini-batches.
    Sum,
    /// The moving average of its values.
    Average,
}

pub(super) type Item = (Kept, ParamId);

/// What a stage has in a storage.
pub(super) struct Shelf {
    storage: Box<dyn Storage>,
    kept: HashMap<Item, Tensors>,
    /// Where the tensors of each item are or were, and their lengths: the next ones go there.
    places: HashMap<Item, Vec<(u64, usize)>>,
    end: u64,
}

#[derive(Clone)]
pub(super) struct Tensors {
    pub(super) slots: Vec<Slot>,
    pub(super) scalars: Vec<(String, Scalar)>,
}

/// Where the bytes of a tensor are.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    place: u64,
    length: usize,
    sum: u32,
}

impl Shelf {
    pub(super) fn new(storage: Box<dyn Storage>) -> Self {
        Self {
            storage,
            kept: HashMap::new(),
            places: HashMap::new(),
            end: 0,
        }
    }

    pub(super) fn write(&mut self, item: Item, tensors: StateSink) -> Result<(), OffloadError> {
        let before = self.places.remove(&item).unwrap_or_default();
        let mut before = before.into_iter();
        let (mut slots, mut places) = (Vec::new(), Vec::new());
        for (name, data) in tensors.tensors {
            let bytes = data.as_bytes();
            let length = bytes.len();
            let place = before.next().filter(|place| place.1 == length);
            let place = place.map_or(self.end, |place| place.0);
            self.end = self.end.max(place + length.max(1) as u64);
            let what = "written";
            let written = self.storage.write(place, bytes);
            written.map_err(|source| OffloadError::Storage { what, source })?;
            places.push((place, length));
            slots.push(Slot {
                name,
                dtype: data.dtype(),
                shape: data.shape().clone(),
                place,
                length,
                sum: crc32fast::hash(bytes),
            });
        }
        let scalars = tensors.scalars;
        self.kept.insert(item, Tensors { slots, scalars });
        self.places.insert(item, places);
        Ok(())
    }

    /// Writes an item of one tensor.
    pub(super) fn write_tensor(
        &mut self,
        item: Item,
        data: TensorData,
    ) -> Result<(), OffloadError> {
        let mut sink = StateSink::default();
        sink.tensors.push((String::new(), data));
        self.write(item, sink)
    }

    /// The same of a tensor that lies on a device.
    pub(super) fn write_from_device<const D: usize>(
        &mut self,
        item: Item,
        tensor: Tensor<D>,
    ) -> Result<(), OffloadError> {
        let data = tensor.try_into_data();
        let data = data.map_err(|error| OffloadError::Device(error.to_string()))?;
        self.write_tensor(item, data)
    }

    /// The tensor of such an item, if it is there.
    pub(super) fn read_tensor(&mut self, item: Item) -> Result<Option<TensorData>, OffloadError> {
        let slots = self.of(item).map(|kept| kept.slots);
        let slot = slots.into_iter().flatten().next();
        slot.map(|slot| self.read_slot(&slot)).transpose()
    }

    pub(super) fn read_slot(&mut self, slot: &Slot) -> Result<TensorData, OffloadError> {
        let mut bytes = vec![0; slot.length];
        let what = "read";
        let read = self.storage.read(slot.place, &mut bytes);
        read.map_err(|source| OffloadError::Storage { what, source })?;
        if crc32fast::hash(&bytes) != slot.sum {
            return Err(OffloadError::Changed);
        }
        let bytes = Bytes::from_bytes_vec(bytes);
        TensorData::try_from_bytes(bytes, slot.shape.clone(), slot.dtype)
            .map_err(|_| OffloadError::Changed)
    }

    pub(super) fn read(&mut self, item: Item) -> Result<Option<StateSource>, OffloadError> {
        let Some(kept) = self.of(item) else {
            return Ok(None);
        };
        let mut source = StateSource::new(kept.scalars.into_iter().collect());
        for slot in kept.slots {
            let data = self.read_slot(&slot)?;
            source.insert_tensor(slot.name, data);
        }
        Ok(Some(source))
    }

    /// What is kept of an item, without its numbers.
    pub(super) fn of(&self, item: Item) -> Option<Tensors> {
        self.kept.get(&item).cloned()
    }

    pub(super) fn remove(&mut self, item: Item) {
        self.kept.remove(&item);
    }

    pub(super) fn clear(&mut self, what: Kept) {
        self.kept.retain(|item, _| item.0 != what);
    }
}
