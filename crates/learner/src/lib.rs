//! Stovepipe's pipelines in burn-train's `Learner`: who has a training loop with metrics, early stopping, checkpoints and
//! a dashboard keeps it, and trains in stages.
//!
//! [`Staged`] is a model for `SupervisedTraining`; [`Bars`] is a renderer for it.
//!
//! # If you already have a Learner
//!
//! Say your model is a list of blocks, and a training step is written out, as it has to be:
//!
//! ```
//! # use burn::{module::Module, nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig}, tensor::{Int, Tensor}};
//! use burn_train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
//!
//! type Points = (Tensor<2>, Tensor<1, Int>); // what the data loader yields
//! # #[derive(Module, Debug)]
//! # struct Block { linear: Linear }
//! # impl Block { fn run(&self, x: Tensor<2>) -> Tensor<2> { self.linear.forward(x).tanh() } }
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     layers: Vec<Block>,
//! }
//!
//! impl Net {
//!     fn classify(&self, (points, labels): Points) -> ClassificationOutput {
//!         let logits = self.layers.iter().fold(points, |x, layer| layer.run(x));
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
//!
//! impl InferenceStep for Net {
//!     type Input = Points;
//!     type Output = ClassificationOutput;
//!
//!     fn step(&self, batch: Points) -> ClassificationOutput {
//!         self.classify(batch)
//!     }
//! }
//! ```
//!
//! To train it in stages, say what a block is given and what it returns, and leave the steps to [`Staged`]:
//!
//! ```
//! # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Int, Tensor}};
//! use burn_train::ClassificationOutput;
//! use stovepipe_learner::Staged;
//! use stovepipe_pipeline::{Batch, BuildError, Context, CrossEntropy, Layer, LayerError, Pipeline};
//!
//! type Points = (Tensor<2>, Tensor<1, Int>);
//! # #[derive(Module, Debug)]
//! # struct Block { linear: Linear }
//! # impl Block { fn run(&self, x: Tensor<2>) -> Tensor<2> { self.linear.forward(x).tanh() } }
//!
//! impl Layer for Block {
//!     type Input = Tensor<2>; // what the model is given
//!     type Flow = Tensor<2>; // what passes between layers
//!     type Output = Tensor<2>; // what the model returns
//!     type Side = ();
//!
//!     fn enter(points: Tensor<2>) -> Tensor<2> {
//!         points
//!     }
//!
//!     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
//!         Ok(self.run(x))
//!     }
//!
//!     fn leave(logits: Tensor<2>) -> Result<Tensor<2>, LayerError> {
//!         Ok(logits)
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
//! Everything else stays: data loaders, `SupervisedTraining` with its metrics, early stopping, checkpointers and dashboard,
//! `Learner::new(model, optimizer, learning_rate)`. A checkpoint made before loads afterwards, with the optimizer's
//! states, if the list of layers was a field `layers` (for another name, a `KeyRemapper` of burn-store renames). A model
//! whose layers differ is an enum of them. `examples/learner` is this for a convolutional network on handwritten digits:
//! `before.rs`, `after.rs`, and one `main.rs` for both.
//!
//! What is learned is what Stovepipe's own loop learns from the same mini-batches in the same order, on the CPU bit for
//! bit, and under any number of stages.
//!
//! # What the Learner does otherwise than Stovepipe's `Trainer`
//!
//! As burn-train 0.22.1 has it:
//!
//! | | the Learner | the `Trainer` |
//! |---|---|---|
//! | a stage fails | a panic, which names stage, layer and micro-batch | an error |
//! | a window of gradients (`grads_accumulation`) | their *sum*; a smaller last window of an epoch counts as it is | the mean over the samples |
//! | an interruption | after the mini-batch under way; a window begun is lost | at once; a window is kept |
//! | the learning rate | moves on just before each update, so once a window | a function of the update's number |
//! | clipping | each tensor by itself | the norm of all gradients |
//! | an update | on the caller's thread, one parameter after another, of a clone: all weights are there twice until it is over | in place, each stage on its worker |
//! | metrics | read the outputs of the whole mini-batch, which are put together and kept until they have been read | are sums that the last stage makes, a few numbers |
//! | the loss of an epoch | the mean over mini-batches, whatever their size | the mean over samples |
//! | a checkpoint | after an epoch; it knows no order of samples and no step | after any step; the training goes on as if unbroken |
//!
//! So, for a training that goes on from a checkpoint, a data loader that shuffles begins with its first order again
//! (and one with several workers has no order at all), and a model with random draws (dropout) needs
//! [`set_steps`](stovepipe_pipeline::Pipeline::set_steps) to draw on where it was. Layers that do something more and more
//! while they train need [`set_progress`](stovepipe_pipeline::Pipeline::set_progress), which the Learner does not call.
//!
//! What one may wonder about, and need not: the default strategy moves a model to its first device, but a pipeline stays
//! on its stages' devices; a clone for each update shares the workers and, until the update, the weights; running
//! statistics in a checkpoint are the newest. Strategies for several devices make copies of a model, which for a
//! pipeline would all run on the same workers, one after the other: leave the strategy at its default. Burn's own
//! `Dropout` draws from a generator of the whole process, and `build` refuses it: use
//! [`nn::Dropout`](stovepipe_pipeline::nn::Dropout).

mod bars;
mod staged;

pub use bars::Bars;
pub use staged::Staged;
