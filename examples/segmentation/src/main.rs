//! Trains U-Net in two stages to find handwritten digits: for each pixel of a canvas, which digit it
//! belongs to, or that it is background.
//!
//! `cargo run --release -p segmentation`

#[cfg(test)]
mod tests;

use std::error::Error;

use burn::{
    data::{
        dataloader::batcher::Batcher,
        dataset::{Dataset, DatasetError},
    },
    tensor::{Device, Int, Tensor, TensorData, activation::log_softmax},
};
use image::{Rgb, RgbImage};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use stovepipe::prelude::*;
use stovepipe::train::{
    Data, Metric, Progress, RunFolder, Source, Summary, Task, Totals, TrainSettings, Trainer,
};
use stovepipe_digits::{Digit, Digits};
use stovepipe_unet::{UNetConfig, UNetLayer};

/// Pixels on a side of a canvas, and of a digit.
const CANVAS: usize = 32;
const DIGIT: usize = 8;
const DIGITS_ON_A_CANVAS: usize = 3;

/// Ten digits, and the background.
const CLASSES: usize = 11;
const BACKGROUND: i32 = 10;

/// The canvases that are drawn after the training.
const PICTURES: usize = 8;

type Failure = Box<dyn Error>;

// The data: canvases with digits, and the class of each pixel.

/// The digits of a canvas, and its number.
struct Canvas {
    digits: [Digit; DIGITS_ON_A_CANVAS],
    number: u64,
}

/// As many canvases as digits, always the same.
struct Canvases(Digits);

impl Dataset<Canvas> for Canvases {
    fn get(&self, index: usize) -> Result<Canvas, DatasetError> {
        let (digits, number) = (self.0.as_slice(), index as u64);
        let mut rng = ChaCha8Rng::seed_from_u64(number);
        let digits = [0; DIGITS_ON_A_CANVAS].map(|_| digits[rng.random_range(0..digits.len())]);
        Ok(Canvas { digits, number })
    }

    fn len(&self) -> usize {
        self.0.as_slice().len()
    }
}

/// Puts digits at random places, which differ from epoch to epoch: this one.
struct Painter(u64);

impl Painter {
    /// The ink and the class of each pixel.
    fn paint(&self, canvas: &Canvas) -> (Vec<f32>, Vec<i32>) {
        let mut rng = ChaCha8Rng::seed_from_u64(canvas.number);
        rng.set_stream(1 + self.0);
        let mut inks = vec![0.0; CANVAS * CANVAS];
        let mut classes = vec![BACKGROUND; CANVAS * CANVAS];
        for digit in &canvas.digits {
            let [top, left] = [(); 2].map(|()| rng.random_range(0..=CANVAS - DIGIT));
            let inked = digit.pixels.iter().enumerate().filter(|(_, ink)| **ink > 3);
            for (place, &ink) in inked {
                let at = (top + place / DIGIT) * CANVAS + left + place % DIGIT;
                inks[at] = f32::from(ink) / 16.0;
                classes[at] = i32::from(digit.label);
            }
        }
        (inks, classes)
    }
}

impl Batcher<Canvas, (Tensor<4>, Tensor<3, Int>)> for Painter {
    fn batch(&self, canvases: Vec<Canvas>, device: &Device) -> (Tensor<4>, Tensor<3, Int>) {
        let (inks, classes): (Vec<_>, Vec<_>) =
            canvases.iter().map(|canvas| self.paint(canvas)).unzip();
        let inks = TensorData::new(inks.concat(), [canvases.len(), 1, CANVAS, CANVAS]);
        let classes = TensorData::new(classes.concat(), [canvases.len(), CANVAS, CANVAS]);
        let inks = Tensor::from_data(inks, device);
        (inks, Tensor::from_data(classes, device))
    }
}

/// Canvases for training, other ones in each epoch, and for tests.
fn data() -> Result<Data<Tensor<4>, Tensor<3, Int>>, Failure> {
    let [train, test] = [Digits::train()?, Digits::test()?].map(Canvases);
    let of_epoch = |epoch| Painter(epoch as u64);
    Ok(Data::augmented(train, test, of_epoch, Painter(0)))
}

// The task: cross-entropy of pixels, and what mean IoU is computed from.

/// Takes logits `[n, classes, height, width]` and classes `[n, height, width]`.
#[derive(Clone)]
struct PixelClasses;

impl Objective<Tensor<4>, Tensor<3, Int>> for PixelClasses {
    fn loss(&self, logits: Tensor<4>, classes: Tensor<3, Int>) -> Tensor<1> {
        let classes = classes.unsqueeze_dim::<4>(1);
        log_softmax(logits, 1).gather(1, classes).sum().neg()
    }

    /// The loss is a mean over pixels.
    fn weight(&self, classes: &Tensor<3, Int>) -> f64 {
        classes.dims().iter().product::<usize>() as f64
    }

    /// For each class, how many pixels truth and prediction share, and how many either has.
    fn scores(&self, logits: Tensor<4>, truth: Tensor<3, Int>) -> Option<Tensor<1>> {
        let predicted = logits.argmax(1).squeeze_dim::<3>(1);
        let counts = (0..CLASSES as i64).flat_map(|class| {
            let [truth, predicted] =
                [&truth, &predicted].map(|classes| classes.clone().equal_elem(class));
            let both = truth.clone().bool_and(predicted.clone());
            [both, truth.bool_or(predicted)].map(|pixels| pixels.int().sum().float())
        });
        Some(Tensor::cat(counts.collect(), 0))
    }
}

fn both(class: usize) -> String {
    format!("both_{class}")
}

fn either(class: usize) -> String {
    format!("either_{class}")
}

fn pixel_accuracy(totals: &Totals) -> f64 {
    (0..CLASSES).map(|class| totals.mean(&both(class))).sum()
}

/// Intersection over union, averaged over the classes that occur.
fn mean_iou(totals: &Totals) -> f64 {
    let of_class = |class| (totals.score(&both(class)), totals.score(&either(class)));
    let occurring = (0..CLASSES)
        .map(of_class)
        .filter(|(_, either)| *either > 0.0);
    let shares: Vec<f64> = occurring.map(|(both, either)| both / either).collect();
    shares.iter().fold(0.0, |sum, share| sum + share) / shares.len().max(1) as f64
}

/// Minimises the cross-entropy of pixels; the best model has the highest mean IoU.
fn task() -> Task<PixelClasses> {
    let iou = Metric::percent("mean_iou", mean_iou);
    Task::new(PixelClasses)
        .with_scores((0..CLASSES).flat_map(|class| [both(class), either(class)]))
        .with_metric(Metric::percent("pixel_accuracy", pixel_accuracy))
        .with_metric(iou.with_label("mean IoU").primary())
}

// The training.

/// Trains in two stages, and writes a run's usual files.
fn train(epochs: usize, folder: &RunFolder) -> Result<(Summary, Pipeline<UNetLayer>), Failure> {
    let device = Device::flex(); // or cuda(0) and cuda(1)
    let layers = UNetConfig::new(1, 24)
        .with_depth(2)
        .with_input_channels(1)
        .with_output_channels(CLASSES)
        .with_dropout(0.0)
        .init(&device)?;
    let sample = Tensor::ones([8, 1, CANVAS, CANVAS], &device);
    let pipeline = Pipeline::auto(layers, vec![device; 2], sample)?.build()?;
    let settings = TrainSettings {
        epochs,
        batch_size: 16,
        lr: 1e-2,
        ..TrainSettings::default()
    };
    let mut trainer = Trainer::new(pipeline, task(), settings)?;
    let summary = trainer.run(&data()?, folder, Progress::new)?;
    Ok((summary, trainer.pipeline().clone()))
}

/// Draws test canvases side by side: the input, the true classes and the predicted ones.
fn draw(pipeline: &Pipeline<UNetLayer>, folder: &RunFolder) -> Result<(), Failure> {
    let Some(batch) = data()?.test(PICTURES).next() else {
        return Ok(());
    };
    let batch = batch?;
    let predicted = pipeline.infer(batch.input.clone())?.argmax(1);
    let inks: Vec<f32> = batch.input.into_data().iter().collect();
    let [truth, predicted]: [Vec<i64>; 2] =
        [batch.target.into_data(), predicted.into_data()].map(|data| data.iter().collect());
    let grey = |ink: f32| Rgb([(255.0 * ink) as u8; 3]);
    for canvas in 0..PICTURES {
        let mut picture = RgbImage::new(3 * CANVAS as u32, CANVAS as u32);
        for place in 0..CANVAS * CANVAS {
            let at = canvas * CANVAS * CANVAS + place;
            let panels = [grey(inks[at]), color(truth[at]), color(predicted[at])];
            for (panel, pixel) in panels.into_iter().enumerate() {
                let (x, y) = (panel * CANVAS + place % CANVAS, place / CANVAS);
                picture.put_pixel(x as u32, y as u32, pixel);
            }
        }
        let [width, height] = [picture.width(), picture.height()].map(|side| 4 * side);
        let nearest = image::imageops::FilterType::Nearest;
        let picture = image::imageops::resize(&picture, width, height, nearest);
        picture.save(folder.file(&format!("canvas-{}.png", canvas + 1)))?;
    }
    Ok(())
}

/// A colour for each digit; black for the background.
fn color(class: i64) -> Rgb<u8> {
    const COLORS: [[u8; 3]; CLASSES] = [
        [230, 25, 75],
        [60, 180, 75],
        [255, 225, 25],
        [0, 130, 200],
        [245, 130, 48],
        [145, 30, 180],
        [70, 240, 240],
        [240, 50, 230],
        [210, 245, 60],
        [170, 110, 40],
        [0, 0, 0],
    ];
    Rgb(COLORS[usize::try_from(class).map_or(0, |class| class % CLASSES)])
}

/// Trains and draws.
fn run(epochs: usize, folder: RunFolder) -> Result<(Summary, Pipeline<UNetLayer>), Failure> {
    let (summary, pipeline) = train(epochs, &folder)?;
    draw(&pipeline, &folder)?;
    println!("{}; see {}", summary.test, folder.finish()?.display());
    Ok((summary, pipeline))
}

fn main() -> Result<(), Failure> {
    stovepipe::train::keep_freed_memory();
    let epochs = std::env::args().nth(1);
    let epochs = epochs.map_or(Ok(12), |epochs| epochs.parse())?;
    run(
        epochs,
        RunFolder::create_next("runs".as_ref(), "segmentation")?,
    )?;
    Ok(())
}
