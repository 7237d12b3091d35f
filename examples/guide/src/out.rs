//! Chapter 10: the trained model as a struct on one device, without Stovepipe.

use std::path::Path;

use burn::{
    data::dataloader::batcher::Batcher,
    store::{ModuleSnapshot, SafetensorsStore},
    tensor::Device,
};
use stovepipe_digits::{DigitBatcher, Digits};

use crate::{Failure, model::Model};

pub fn main(folder: &Path) -> Result<(), Failure> {
    let device = Device::flex();
    let mut file = SafetensorsStore::from_file(folder.join("model.safetensors"))
        .with_key_remapping(r"^layers\.0\.", "conv1.")
        .with_key_remapping(r"^layers\.1\.", "conv2.")
        .with_key_remapping(r"^layers\.2\.", "conv3.")
        .with_key_remapping(r"^layers\.3\.", "conv4.")
        .with_key_remapping(r"^layers\.4\.", "linear.");
    let mut model = Model::new(&device);
    model.load_from(&mut file)?;

    let digits = Digits::test()?;
    let (images, labels) = DigitBatcher.batch(digits.as_slice().to_vec(), &device);
    let samples = digits.as_slice().len();
    let found = model.forward(images).argmax(1).squeeze_dim::<1>(1);
    let right = found.equal(labels).int().sum().into_scalar::<i64>();
    println!("{right} of {samples} test digits are right");
    Ok(())
}
