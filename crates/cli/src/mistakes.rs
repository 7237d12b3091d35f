//! The test images that a model is most wrong about, for the report.

use std::fs;

use burn::tensor::{Tensor, activation::log_softmax};
use image::RgbImage;
use stovepipe::{pipeline::Pipeline, train::RunFolder};
use stovepipe_imagenet::Normalisation;
use stovepipe_report::MistakeEntry;

use crate::{
    data::{ImageSets, Labels},
    error::CliError,
    models::Classifier,
};

/// Mistakes that are kept.
const MOST: usize = 24;

/// The subfolder of their pictures.
const PICTURES: &str = "mistakes";

/// Finds the mistakes of a model.
pub struct MistakeFinder<'a> {
    pub sets: &'a ImageSets,
    pub batch_size: usize,
    /// What was done to the images.
    pub normalisation: Normalisation,
}

/// An image whose predicted class is not its own.
struct Mistake {
    /// Its place in the test set.
    place: usize,
    class: usize,
    predicted: usize,
    probability: f64,
    loss: f64,
    picture: RgbImage,
}

impl MistakeFinder<'_> {
    /// Writes the worst mistakes into a run's folder: `mistakes.json` and a picture of each.
    pub fn write<L: Classifier>(
        &self,
        pipeline: &Pipeline<L>,
        folder: &RunFolder,
    ) -> Result<(), CliError> {
        let pictures = folder.file(PICTURES);
        let file = |source| CliError::File {
            path: pictures.clone(),
            source,
        };
        // The run may have ended before, and been resumed.
        if pictures.exists() {
            fs::remove_dir_all(&pictures).map_err(file)?;
        }
        fs::create_dir_all(&pictures).map_err(file)?;
        let mut entries = Vec::new();
        for (rank, mistake) in self.worst(pipeline)?.into_iter().enumerate() {
            let path = format!("{PICTURES}/{:02}.png", rank + 1);
            let at = folder.file(&path);
            (mistake.picture.save(&at)).map_err(|source| CliError::Write {
                path: at,
                source: source.into(),
            })?;
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
            picture: picture.parse().ok(),
        })
    }

    /// The worst mistakes, the worst one first.
    fn worst<L: Classifier>(&self, pipeline: &Pipeline<L>) -> Result<Vec<Mistake>, CliError> {
        let (mut worst, mut first) = (Worst::default(), 0);
        for batch in self.sets.source.test(self.batch_size) {
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
                if let Some((predicted, loss)) =
                    mistaken(shares, class).filter(|&(_, loss)| worst.admits(loss))
                {
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
        Ok(worst.0)
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

/// The predicted class of a sample with these log-probabilities, and its loss, if that is not its class.
fn mistaken(shares: &[f64], class: usize) -> Option<(usize, f64)> {
    let own = *shares.get(class)?;
    let ranked = shares.iter().enumerate();
    let (predicted, _) = ranked.max_by(|a, b| a.1.total_cmp(b.1))?;
    (predicted != class).then_some((predicted, -own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_another_class_that_is_likelier() {
        assert_eq!(mistaken(&[-0.1, -2.5], 0), None);
        assert_eq!(mistaken(&[-0.1, -2.5], 1), Some((0, 2.5)));
        assert_eq!(mistaken(&[-0.1, -2.5], 2), None);
    }
}
