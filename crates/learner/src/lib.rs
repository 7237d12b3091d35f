//! Trains a Stovepipe pipeline with burn-train's `Learner`: you keep your training loop with its metrics,
//! early stopping, checkpoints and dashboard, and train in stages.
//!
//! [`Staged`] is a model for `SupervisedTraining`, [`PipelineStrategy`] its strategy; [`Bars`] is a
//! renderer.
//!
//! # If you already have a Learner
//!
//! Say your model is a list of blocks:
//!
//! ```
//! # use burn::{module::Module, nn::{Linear, loss::CrossEntropyLossConfig}, tensor::{Int, Tensor}};
//! use burn_train::{ClassificationOutput, TrainOutput, TrainStep};
//!
//! type Points = (Tensor<2>, Tensor<1, Int>); // what the data loader yields
//!
//! #[derive(Module, Debug)]
//! struct Block {
//!     linear: Linear,
//! }
//!
//! impl Block {
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.linear.forward(x).tanh()
//!     }
//! }
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     layers: Vec<Block>,
//! }
//!
//! impl Net {
//!     fn classify(&self, (points, labels): Points) -> ClassificationOutput {
//!         let logits = self.layers.iter().fold(points, |x, layer| layer.forward(x));
//!         let loss = CrossEntropyLossConfig::new().init(&logits.device());
//!         let loss = loss.forward(logits.clone(), labels.clone());
//!         ClassificationOutput::new(loss, logits, labels)
//!     }
//! }
//!
//! impl TrainStep for Net {
//!     type Input = Points;
//!     type Output = ClassificationOutput;
//!
//!     fn step(&self, batch: Points) -> TrainOutput<ClassificationOutput> {
//!         let item = self.classify(batch);
//!         TrainOutput::new(self, item.loss.backward(), item)
//!     }
//! }
//! // And `InferenceStep`.
//! ```
//!
//! To train it in stages, write `#[layer]` on the block, [`Staged`] instead of `Net`, and one line in your
//! training, `.with_training_strategy(PipelineStrategy.into())`:
//!
//! ```
//! # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Int, Tensor}};
//! use burn_train::ClassificationOutput;
//! use stovepipe_learner::Staged;
//! use stovepipe_pipeline::{Batch, BuildError, CrossEntropy, Pipeline, layer};
//!
//! # type Points = (Tensor<2>, Tensor<1, Int>);
//! # #[derive(Module, Debug)]
//! # struct Block { linear: Linear }
//! #[layer]
//! impl Block {
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.linear.forward(x).tanh()
//!     }
//! }
//!
//! type Net = Staged<Block, CrossEntropy, Points, Tensor<1, Int>, ClassificationOutput>;
//!
//! fn model(layers: Vec<Block>, devices: Vec<Device>) -> Result<Net, BuildError> {
//!     let pipeline = Pipeline::builder(layers).devices(devices).micro_batches(4).build()?;
//!     Ok(Staged::new(pipeline, CrossEntropy::new(), Batch::from, ClassificationOutput::new))
//! }
//! # let device = Device::flex();
//! # let layer = || Block { linear: LinearConfig::new(2, 2).init(&device) };
//! # let model = model(vec![layer(), layer()], vec![device.clone(), device.clone()])?;
//! # assert_eq!(model.pipeline().stages().len(), 2);
//! # Ok::<(), BuildError>(())
//! ```
//!
//! The rest stays: data loaders, `SupervisedTraining` with its metrics, early stopping, checkpointers and
//! dashboard, `Learner::new(model, optimizer, learning_rate)`. Old checkpoints load, with the optimizer
//! state, if the field with the layers was called `layers` (else rename with burn-store's `KeyRemapper`).
//! If layers differ, make an enum of them or use `#[derive(Layers)]`. `examples/learner` trains a
//! convolutional network on handwritten digits: `before.rs`, `after.rs`, and one `main.rs` for both.
//!
//! On the CPU, the results have the same bits as those of Stovepipe's `Trainer` for the same mini-batches
//! in the same order, with any number of stages.
//!
//! # Differences from Stovepipe's `Trainer`
//!
//! As of burn-train 0.22.1:
//!
//! | | the Learner | the `Trainer` |
//! |---|---|---|
//! | a failed stage | an error that names stage, layer and micro-batch; a panic with the default strategy | an error |
//! | accumulated gradients (`grads_accumulation`) | their *sum*; at the end of an epoch it may have fewer mini-batches | the mean over the samples |
//! | an interruption | takes effect after the mini-batch; accumulated gradients are dropped | takes effect at once; accumulated gradients are kept |
//! | the learning rate | changes before each update | is a function of the update's number |
//! | clipping | each tensor separately | the norm of all gradients |
//! | an update | on the caller's thread, one parameter after another, on a clone: weights exist twice meanwhile | in place, each stage on its worker |
//! | metrics | read the joined outputs of the mini-batch | are sums that the last stage computes |
//! | the loss of an epoch | the mean over mini-batches of any size | the mean over samples |
//! | a checkpoint | after an epoch, without the order of samples and the step | after any step, with both |
//!
//! So if you resume from a checkpoint, a shuffling data loader restarts with its first order (with several
//! workers it has none). With the default strategy, a model with dropout also needs
//! [`set_steps`](stovepipe_pipeline::Pipeline::set_steps) to draw the same numbers as without the break, and
//! layers that change while they train need
//! [`set_progress`](stovepipe_pipeline::Pipeline::set_progress); [`PipelineStrategy`] does both.
//!
//! The default strategy gives the same bits. It moves a model to its first device, but a pipeline stays on
//! the devices of its stages. Burn's strategies for several devices copy a model, and all copies of a
//! pipeline would wait for the same workers. `build` refuses Burn's own `Dropout`, which draws from a
//! generator of the whole process: use [`nn::Dropout`](stovepipe_pipeline::nn::Dropout).

mod bars;
mod staged;
mod strategy;

pub use bars::Bars;
pub use staged::Staged;
pub use strategy::PipelineStrategy;
