//! The test images that a model is most wrong about, and what it takes for what.

use std::{collections::BTreeMap, fs};

use burn::tensor::{Tensor, activation::log_softmax};
use image::RgbImage;
use stovepipe::{pipeline::Pipeline, train::RunFolder};
use stovepipe_imagenet::Normalisation;
use stovepipe_report::{Confusion, MistakeEntry, PicturePath};

use crate::{
    data::{ImageSets, Labels},
    error::CliError,
    models::Classifier,
};

const MOST: usize = 24;

/// The subfolder of their pictures.
const PICTURES: &str = "mistakes";

pub struct MistakeFinder {
    pub sets: ImageSets,
    /// What was done to the images.
    pub normalisation: Normalisation,
}

/// An image whose predicted class is not its own.
pub struct Mistake {
    /// Its place in the test set.
    place: usize,
    class: usize,
    predicted: usize,
    probability: f64,
    loss: f64,
    picture: RgbImage,
}

impl MistakeFinder {
    /// Writes the worst mistakes into a run's folder: `mistakes.json` and a picture of each. And what is taken
    /// for what.
    pub fn write<L: Classifier>(
        &self,
        pipeline: &Pipeline<L>,
        (batch_size, most): (usize, usize),
        folder: &RunFolder,
    ) -> Result<(), CliError> {
        let (worst, confusion) = self.find(pipeline, (batch_size, most))?;
        if folder.is_elsewhere() {
            return Ok(());
        }
        folder.write_json("confusion.json", &confusion)?;
        let pictures = folder.file(PICTURES);
        // The run may have ended before, and been resumed.
        if pictures.exists() {
            fs::remove_dir_all(&pictures).map_err(CliError::file(&pictures))?;
        }
        fs::create_dir_all(&pictures).map_err(CliError::file(&pictures))?;
        let mut entries = Vec::new();
        for (rank, mistake) in worst.into_iter().enumerate() {
            let path = format!("{PICTURES}/{:02}.png", rank + 1);
            let at = folder.file(&path);
            mistake.picture.save(&at).map_err(CliError::file(&at))?;
            entries.push(self.entry(&mistake, &path)?);
        }
        Ok(folder.write_json("mistakes.json", &entries)?)
    }

    fn entry(&self, mistake: &Mistake, picture: &str) -> Result<MistakeEntry, CliError> {
        let class = |class: usize| self.sets.classes.get(class).cloned().unwrap_or_default();
        let finite = |number: f64| Some(number).filter(|number| number.is_finite());
        Ok(MistakeEntry {
            file: Some((self.sets.names)(mistake.place)),
            label: class(mistake.class),
            said: class(mistake.predicted),
            probability: finite(mistake.probability),
            loss: finite(mistake.loss),
            picture: PicturePath::try_from(picture.to_owned()).ok(),
        })
    }

    /// The worst mistakes in the test set, in at most so many batches of this size, and what is taken for what.
    pub fn find<L: Classifier>(
        &self,
        pipeline: &Pipeline<L>,
        (batch_size, most): (usize, usize),
    ) -> Result<(Vec<Mistake>, Confusion), CliError> {
        let (mut worst, mut first) = (Worst::default(), 0);
        let mut counts = BTreeMap::<_, u64>::new();
        let batches = self.sets.source.test(batch_size);
        for batch in batches.take(most) {
            let batch = batch?;
            let (images, Labels::Classes(labels)) = (batch.input, batch.target) else {
                continue;
            };
            let labels: Vec<i64> = labels.into_data().iter().collect();
            let logits = pipeline.infer(images.clone())?;
            let [_, classes] = logits.dims();
            let shares: Vec<f64> = log_softmax(logits, 1).into_data().iter().collect();
            for (place, (shares, &label)) in shares.chunks(classes).zip(&labels).enumerate() {
                let class = usize::try_from(label).unwrap_or(usize::MAX);
                let (Some(predicted), Some(own)) = (likeliest(shares), shares.get(class)) else {
                    continue;
                };
                *counts.entry((class, predicted)).or_default() += 1;
                let loss = -own;
                if predicted != class && worst.admits(loss) {
                    worst.add(Mistake {
                        place: first + place,
                        class,
                        predicted,
                        probability: shares[predicted].exp(),
                        loss,
                        picture: self.picture(images.clone().narrow(0, place, 1)),
                    });
                }
            }
            first += labels.len();
        }
        Ok((worst.0, Confusion::new(self.sets.classes.clone(), counts)))
    }

    /// An image `[1, 3, height, width]` as it was before it was normalised.
    fn picture(&self, image: Tensor<4>) -> RgbImage {
        let [_, _, height, width] = image.dims();
        let values: Vec<f32> = image.into_data().iter().collect();
        let Normalisation { mean, std } = self.normalisation;
        RgbImage::from_fn(width as u32, height as u32, |x, y| {
            let place = y as usize * width + x as usize;
            let shade = |channel: usize| {
                let value = values[channel * width * height + place];
                (255.0 * (value * std[channel] + mean[channel])).round() as u8
            };
            image::Rgb([0, 1, 2].map(shade))
        })
    }
}

/// The worst mistakes so far, the worst one first.
#[derive(Default)]
struct Worst(Vec<Mistake>);

impl Worst {
    fn admits(&self, loss: f64) -> bool {
        let least = self.0.last();
        self.0.len() < MOST || least.is_some_and(|least| loss > least.loss)
    }

    fn add(&mut self, mistake: Mistake) {
        let after = self.0.partition_point(|other| other.loss >= mistake.loss);
        self.0.insert(after, mistake);
        self.0.truncate(MOST);
    }
}

fn likeliest(shares: &[f64]) -> Option<usize> {
    let ranked = shares.iter().enumerate();
    ranked
        .max_by(|a, b| a.1.total_cmp(b.1))
        .map(|(class, _)| class)
}
