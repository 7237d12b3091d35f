//! The model without a pipeline.

use crate::model::{
    context::{Context, Left},
    keyed_rng::KeyedRng,
    layer::{Layer, LayerError},
};

/// What a model makes of an input.
#[derive(Clone, Debug)]
pub struct Plain<L: Layer> {
    /// Its output.
    pub output: L::Output,
    /// The outputs of its auxiliary heads, if the run trains.
    pub auxiliary: Vec<L::Output>,
}

/// Runs layers one after the other, as one module on one device and in one graph: what a pipeline's
/// results can be compared with, and the way to use its layers once it is taken
/// [apart](crate::Pipeline::into_layers). `draws` gives each layer its random numbers.
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # impl Layer for Dense {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
/// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
/// #         Ok(self.linear.forward(x))
/// #     }
/// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
/// # }
/// use stovepipe_pipeline::{KeyedRng, run_plain};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::flex();
/// let layers = [4, 8, 3].windows(2).map(|sizes| Dense {
///     linear: LinearConfig::new(sizes[0], sizes[1]).init(&device),
/// }).collect();
/// let pipeline = Pipeline::builder(layers).devices([device.clone(), device.clone()]).build()?;
///
/// let x = Tensor::ones([5, 4], &device);
/// let pipelined = pipeline.infer(x.clone())?;
/// let layers: Vec<_> = pipeline.into_layers().iter().map(Module::valid).collect();
/// let plain = run_plain(&layers, x, &(), |_| KeyedRng::none())?;
/// assert_eq!(plain.output.to_data(), pipelined.to_data());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// If a layer cannot take what it is given, or takes a skip that no layer before it has sent.
pub fn run_plain<L: Layer>(
    layers: &[L],
    input: L::Input,
    side: &L::Side,
    draws: impl Fn(usize) -> KeyedRng,
) -> Result<Plain<L>, LayerError> {
    let mut flow = L::enter(input);
    let mut skips: Vec<(String, L::Flow)> = Vec::new();
    let mut auxiliary = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let context = Context::new(side, false).with_rng(draws(index));
        let available = skips.iter().cloned();
        let mut context = available.fold(context, |context, (name, value)| {
            context.with_skip(name, value)
        });
        flow = layer.forward(flow, &mut context)?;
        let Left {
            auxiliary: heads,
            sent,
            ..
        } = context.into_left();
        auxiliary.extend(heads);
        skips.extend(sent);
    }
    Ok(Plain {
        output: L::leave(flow)?,
        auxiliary,
    })
}
