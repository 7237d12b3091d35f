//! Transfer learning: a network that was trained on the digits 0 to 4 learns 5 to 9 from 20 images of
//! each, in ten epochs, and gets better than one that is trained from scratch.
//!
//! ```sh
//! cargo run --release -p transfer-learning
//! ```
//!
//! All trainings run with five seeds, which determine the first parameters, the 20 images and their
//! order. Each training writes a folder; a table at the end compares them.

use std::{error::Error, path::Path};

use burn::tensor::Device;
use stovepipe::prelude::*;
use stovepipe::train::{
    Data, Progress, RunFolder, Task, TrainSettings, Trainer, Weights, run::show_count,
    settings::FreezeSetting,
};
use stovepipe_amoebanet::{AmoebaNetDConfig, Stem};
use stovepipe_digits::{DigitBatcher, Digits};

/// The digits of the first training, and those of the second, which has few images.
const FIRST: [u8; 5] = [0, 1, 2, 3, 4];
const THEN: [u8; 5] = [5, 6, 7, 8, 9];
const IMAGES_A_CLASS: usize = 20;

fn model() -> AmoebaNetDConfig {
    AmoebaNetDConfig::new(3, 8, THEN.len()).with_stem(Stem::Small)
}

/// How the second digits are learned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Scratch,
    NewHead,
    Everything,
}

impl Method {
    const ALL: [Self; 3] = [Self::Scratch, Self::NewHead, Self::Everything];

    fn name(self) -> &'static str {
        match self {
            Self::Scratch => "from scratch",
            Self::NewHead => "transferred, only a new head learns",
            Self::Everything => "transferred, all layers learn, the first slowly",
        }
    }

    fn settings(self, seed: u64) -> TrainSettings {
        let settings = TrainSettings {
            epochs: 10,
            batch_size: 20,
            seed,
            ..TrainSettings::default()
        };
        match self {
            Self::Scratch => settings,
            Self::NewHead => TrainSettings {
                freeze: FreezeSetting::Body,
                ..settings
            },
            Self::Everything => TrainSettings {
                layer_decay: 0.9,
                ..settings
            },
        }
    }
}

/// Trains in two stages, from the weights of a file if there is one, but with a new head. Returns the
/// accuracy on the test images.
fn train(
    (train, test): (Digits, Digits),
    settings: TrainSettings,
    from: Option<&Path>,
    folder: &Path,
) -> Result<f64, Box<dyn Error>> {
    let device = Device::flex(); // or cuda(0) and cuda(1)
    let layers = settings.freeze.apply(model().init(&device)?)?;
    let mut pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device.clone()])
        .micro_batches(2)
        .seed(settings.seed)
        .build()?;
    if let Some(file) = from {
        let head = model().classifier();
        Weights::open(file)?
            .without(move |name| name.starts_with(&head))
            .load_into(&mut pipeline)?;
    }
    let data = Data::new(train, test, DigitBatcher);
    let folder = RunFolder::create(folder)?;
    let mut trainer = Trainer::new(pipeline, Task::classification(&settings), settings)?;
    let summary = trainer.run(&data, &folder, |_, _| Progress::silent())?;
    folder.finish()?;
    Ok(summary.test.get("accuracy").unwrap_or(0.0))
}

/// The accuracy of each method on the second digits, for one seed.
fn compare(seed: u64, folder: &Path, done: impl Fn()) -> Result<[f64; 3], Box<dyn Error>> {
    let both = (Digits::train()?, Digits::test()?);
    let first = (both.0.only(&FIRST), both.1.only(&FIRST));
    let settings = TrainSettings {
        epochs: 6,
        seed,
        ..TrainSettings::default()
    };
    let pretrained = folder.join("pretrained");
    train(first, settings, None, &pretrained)?;
    done();
    let few = both.0.only(&THEN).few(IMAGES_A_CLASS, seed);
    let then = (few, both.1.only(&THEN));
    let file = pretrained.join("model.safetensors");
    let mut accuracies = [0.0; 3];
    for (method, accuracy) in Method::ALL.into_iter().zip(&mut accuracies) {
        let from = (method != Method::Scratch).then_some(&*file);
        let folder = folder.join(format!("way-{}", method as usize + 1));
        *accuracy = train(then.clone(), method.settings(seed), from, &folder)?;
        done();
    }
    Ok(accuracies)
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (mean, (squares.sum::<f64>() / (count - 1.0)).sqrt())
}

fn table(of_seeds: &[[f64; 3]]) -> String {
    let mut text = format!(
        "right of {} test images, {} seeds    mean ± deviation\n",
        "5 to 9",
        of_seeds.len()
    );
    for (method, name) in Method::ALL.map(Method::name).into_iter().enumerate() {
        let values: Vec<_> = of_seeds.iter().map(|seed| 100.0 * seed[method]).collect();
        let (mean, deviation) = mean_and_deviation(&values);
        text += &format!("{name:51}  {mean:6.1} ± {deviation:4.1} %\n");
    }
    text
}

fn run(seeds: u64, folder: &Path) -> Result<Vec<[f64; 3]>, Box<dyn Error>> {
    let trainings = seeds as usize * (1 + Method::ALL.len());
    let (show, done) = (
        show_count("transfer:", "training", trainings),
        std::cell::Cell::new(0),
    );
    let one = || {
        done.set(done.get() + 1);
        show(done.get());
    };
    (0..seeds)
        .map(|seed| compare(seed, &folder.join(format!("seed-{seed}")), one))
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = RunFolder::create_next("runs".as_ref(), "transfer")?;
    print!("{}", table(&run(5, &folder.file(""))?));
    println!("the trainings are in {}", folder.finish()?.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_of_some_digits_helps_with_others() -> Result<(), Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let of_seeds = run(2, &folder.path().join("transfer"))?;
        // What was learned gains five points on average, but the mean of two seeds varies by four: there are 178 test
        // images. A new head alone is twenty points worse.
        let mean = |method: usize| of_seeds.iter().map(|seed| seed[method]).sum::<f64>() / 2.0;
        assert!(mean(2) > mean(0) - 0.1, "{of_seeds:?}");
        assert!(mean(2) > mean(1), "{of_seeds:?}");
        assert!(table(&of_seeds).contains("from scratch"));
        Ok(())
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[1.0, 2.0, 3.0]), (2.0, 1.0));
    }
}
