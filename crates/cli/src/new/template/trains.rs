//! The training works, and stages do not change its result.

use std::error::Error;

use stovepipe::{
    prelude::NamedDevice,
    train::{RunFolder, Summary},
};

fn train(stages: usize) -> Result<Summary, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let folder = RunFolder::create(&folder.path().join("run"))?;
    let cpu: NamedDevice = "cpu".parse()?;
    NAME::train(vec![cpu; stages], &folder)
}

#[test]
fn it_learns_the_same_in_two_stages() -> Result<(), Box<dyn Error>> {
    let (one, two) = (train(1)?, train(2)?);
    assert_eq!(two.test.loss.to_bits(), one.test.loss.to_bits());
    let accuracy = two.test.get("accuracy").ok_or("no accuracy")?;
    assert!(accuracy > 0.9, "{accuracy}");
    Ok(())
}
