//! Runs a model without a pipeline.

use crate::model::{
    keyed_rng::KeyedRng,
    layer::{Context, Layer, LayerError},
};

/// The outputs of a model.
#[derive(Clone, Debug)]
pub struct Plain<L: Layer> {
    /// The output.
    pub output: L::Output,
    /// The outputs of auxiliary heads, in training.
    pub auxiliary: Vec<L::Output>,
}

/// Runs layers one after another, in one graph on one device: a reference for a pipeline's results, and
/// the way to use layers [taken out](crate::Pipeline::into_layers) of a pipeline. `rng` gives each layer
/// its random numbers.
///
/// ```
/// use burn::{module::Module, tensor::{Device, Tensor}};
/// # use stovepipe_pipeline::doc_example::Dense;
/// use stovepipe_pipeline::{KeyedRng, Pipeline, run_plain};
///
/// let device = Device::flex();
/// let devices = [device.clone(), device.clone()];
/// let pipeline = Pipeline::builder(Dense::layers(&[4, 8, 3])).devices(devices).build()?;
/// let x = Tensor::ones([5, 4], &device);
/// let pipelined = pipeline.infer(x.clone())?;
///
/// let layers: Vec<_> = pipeline.into_layers().iter().map(Module::valid).collect();
/// let plain = run_plain(&layers, x, &(), |_| KeyedRng::none())?;
/// assert_eq!(plain.output.to_data(), pipelined.to_data());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If a layer cannot take its input, or takes a skip that no earlier layer has sent.
pub fn run_plain<L: Layer>(
    layers: &[L],
    input: L::Input,
    side: &L::Side,
    rng: impl Fn(usize) -> KeyedRng,
) -> Result<Plain<L>, LayerError> {
    let mut flow = L::enter(input);
    let mut skips: Vec<(String, L::Flow)> = Vec::new();
    let mut auxiliary = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let context = Context::new(side, false).with_rng(rng(index));
        let available = skips.iter().cloned();
        let mut context = available.fold(context, |context, (name, value)| {
            context.with_skip(name, value)
        });
        flow = layer.forward(flow, &mut context)?;
        auxiliary.extend(context.auxiliary);
        skips.extend(context.sent);
    }
    Ok(Plain {
        output: L::leave(flow)?,
        auxiliary,
    })
}
