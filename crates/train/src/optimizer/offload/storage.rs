//! Where bytes lie that are not on a device.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
};

/// Where bytes lie that are not on a device: a file, or [`HostMemory`].
///
/// What is read was written before, with the same place and length.
pub trait Storage: Send + 'static {
    /// Reads what was written at a place.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or there is less.
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes, over what was there.
    ///
    /// # Errors
    ///
    /// If it cannot be written, as on a full disk.
    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Storage for Box<dyn Storage> {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        (**self).read(place, bytes)
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(place, bytes)
    }
}

impl Storage for File {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.seek(SeekFrom::Start(place))?;
        self.read_exact(bytes)
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        self.seek(SeekFrom::Start(place))?;
        self.write_all(bytes)
    }
}

/// Memory of the host, for states of GPUs.
///
/// ```
/// use stovepipe_train::optimizer::{HostMemory, Storage};
///
/// let mut memory = HostMemory::default();
/// memory.write(8, b"state")?;
/// let mut found = [0; 5];
/// memory.read(8, &mut found)?;
/// assert_eq!(&found, b"state");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct HostMemory(BTreeMap<u64, Vec<u8>>);

impl Storage for HostMemory {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        let found = self.0.get(&place).filter(|own| own.len() == bytes.len());
        let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        let own = self.0.entry(place).or_default();
        own.clear();
        own.extend_from_slice(bytes);
        Ok(())
    }
}
