//! Trains AmoebaNet-D on a folder of images, ImageNet or any other, in two stages.
//!
//! ```sh
//! cargo run --release -p train-imagenet -- PATH [EPOCHS]
//! ```
//!
//! `PATH` contains `train` and `val` with a folder for each class, or only class folders. This file has
//! all steps: loading, the loop, the learning rate, the update, the test, the file at the end.

use std::{env, error::Error, path::Path, process::ExitCode};

use burn::{optim::RmsPropConfig, tensor::Device};
use stovepipe::{
    prelude::*,
    train::{data::shuffled, optimizer::WeightAverage, save_model},
};
use stovepipe_amoebanet::AmoebaNetDConfig;
use stovepipe_imagenet::{Augmentation, FolderSettings, ImageSets, Images, Loading};

/// The settings.
#[derive(Clone, Copy)]
struct ImagenetRecipe {
    cells: usize,
    filters: usize,
    image_size: u32,
    batch_size: usize,
    micro_batches: usize,
    epochs: usize,
    learning_rate: f64,
}

const RECIPE: ImagenetRecipe = ImagenetRecipe {
    cells: 6,
    filters: 64,
    image_size: 224,
    batch_size: 64,
    micro_batches: 8,
    epochs: 10,
    learning_rate: 0.03,
};

const SEED: u64 = 42;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("name a folder of images")?;
    let epochs = arguments.next().map(|epochs| epochs.parse());
    let recipe = ImagenetRecipe {
        epochs: epochs.transpose()?.unwrap_or(RECIPE.epochs),
        ..RECIPE
    };
    let accuracy = train(folder.as_ref(), &recipe, "amoebanet.safetensors".as_ref())?;
    println!("{:.1} % of the test images are right", 100.0 * accuracy);
    Ok(())
}

/// Trains a model and saves it. Returns its accuracy on the test images.
fn train(folder: &Path, recipe: &ImagenetRecipe, model: &Path) -> Result<f64, Box<dyn Error>> {
    // Threads decode, crop, mirror and normalise images in advance.
    let sets = ImageSets::open(folder, &FolderSettings::default())?;
    let loading = Loading {
        size: recipe.image_size,
        augmentation: Augmentation {
            mixup: 0.2,
            ..Augmentation::default()
        },
        ..Loading::default()
    };
    let classes = sets.train.classes().len();
    let training = Images::new(sets.train, loading.clone())?;
    let test = Images::new(sets.validation, loading)?;

    // The model: a list of layers, cut in two by their measured times.
    let device = Device::flex(); // or Device::cuda(0), Device::cuda(1)
    let layers = AmoebaNetDConfig::new(recipe.cells, recipe.filters, classes)
        .with_auxiliary(true)
        .with_drop_path(0.3)
        .init(&device)?;
    let size = recipe.image_size as usize;
    let samples = recipe.batch_size.div_ceil(recipe.micro_batches);
    let sample = burn::tensor::Tensor::ones([samples, 3, size, size], &device);
    let mut pipeline = Pipeline::auto(layers, [device.clone(), device.clone()], sample)?
        .schedule(OneForwardOneBackward)
        .micro_batches(recipe.micro_batches)
        .seed(SEED)
        .build()?;
    println!("{pipeline}");

    let objective = CrossEntropy::new().with_smoothing(0.1);
    let objective = objective.with_auxiliary_share(0.4);
    let mut optimizer = RmsPropConfig::new()
        .with_alpha(0.9)
        .with_momentum(0.9)
        .with_epsilon(1.0)
        .init();
    let mut average = WeightAverage::new(&pipeline, 0.999);

    let batches = training.len().div_ceil(recipe.batch_size);
    let steps = (recipe.epochs * batches) as f64;
    for epoch in 0..recipe.epochs {
        let order = shuffled(training.len(), SEED, epoch);
        let loaded = training.train_batches(order, recipe.batch_size, SEED, epoch);
        for (batch, images) in loaded.enumerate() {
            let progress = (epoch * batches + batch) as f64 / steps;
            pipeline.set_progress(progress); // drop-path grows with it
            let (images, shares) = images?.into_shares(classes, &device);
            let step = pipeline.train_step((images, shares), &objective)?;
            if batch % 10 == 0 {
                let (loss, bubble) = (step.loss, 100.0 * step.bubble());
                println!("epoch {epoch}, {batch}/{batches}: loss {loss:.3}, bubble {bubble:.0} %");
            }
            // Rises for a tenth of the steps, then falls like half a cosine.
            let rate = recipe.learning_rate
                * f64::min(
                    10.0 * progress + 1.0 / steps,
                    0.5 + 0.5 * (std::f64::consts::PI * progress).cos(),
                );
            pipeline = optimizer.step(rate, pipeline, step.gradients);
            average.update(&pipeline)?;
        }
        let accuracy = accuracy(average.pipeline(), &test, recipe.batch_size)?;
        println!("epoch {epoch}: {:.1} % right", 100.0 * accuracy);
    }
    for file in training.skipped() {
        println!("skipped {}: {}", file.path.display(), file.reason);
    }
    save_model(average.pipeline(), model.to_owned())?;
    accuracy(average.pipeline(), &test, recipe.batch_size)
}

/// The accuracy of a model.
fn accuracy<L>(
    pipeline: &Pipeline<L>,
    test: &Images,
    batch_size: usize,
) -> Result<f64, Box<dyn Error>>
where
    L: Layer<Input = burn::tensor::Tensor<4>, Output = burn::tensor::Tensor<2>, Side = ()>,
{
    let (mut right, mut all) = (0.0, 0.0);
    for images in test.eval_batches(batch_size) {
        let (images, classes) = images?.into_classes(&Device::flex());
        let evaluated = pipeline.evaluate((images, classes), &CrossEntropy::new().counting())?;
        right += evaluated.scores[0];
        all += evaluated.weight;
    }
    Ok(right / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red pictures and blue ones.
    #[test]
    fn it_learns_to_tell_two_colours() -> Result<(), Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        for (class, colour) in [("blue", [20, 30, 220]), ("red", [220, 30, 20])] {
            for (set, count) in [("train", 12), ("val", 4)] {
                let folder = folder.path().join(set).join(class);
                std::fs::create_dir_all(&folder)?;
                for number in 0..count {
                    let shade = |value: u8, y: u32| value.saturating_add((y + number) as u8);
                    let picture = image::RgbImage::from_fn(60, 50, |_, y| {
                        image::Rgb(colour.map(|c| shade(c, y)))
                    });
                    picture.save(folder.join(format!("{number}.png")))?;
                }
            }
        }
        let recipe = ImagenetRecipe {
            cells: 3,
            filters: 8,
            image_size: 96,
            batch_size: 8,
            micro_batches: 2,
            epochs: 24,
            learning_rate: 0.02,
        };
        let model = folder.path().join("model.safetensors");
        let accuracy = train(folder.path(), &recipe, &model)?;
        assert!(accuracy > 0.9, "{accuracy}");
        assert!(model.exists());
        Ok(())
    }
}
