//! What a layer sees beside its input.

use std::ops::Range;

use crate::model::{
    keyed_rng::KeyedRng,
    layer::{Layer, LayerError},
};

/// What a layer sees beside its input while it runs.
pub struct Context<'a, L: Layer> {
    side: &'a L::Side,
    rng: KeyedRng,
    auxiliary: Vec<L::Output>,
    /// What may be taken, by name.
    available: Vec<(String, L::Flow)>,
    sent: Vec<(String, L::Flow)>,
}

impl<'a, L: Layer> Context<'a, L> {
    /// A context to run a layer in by hand, outside a pipeline. If it trains, then as layer 0 in step
    /// 0 for sample 0 and seed 0, unless it is given other [draws](Self::with_rng).
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, LayerError};
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
    /// # fn main() -> Result<(), LayerError> {
    /// let device = Device::flex();
    /// let layer = Dense { linear: LinearConfig::new(3, 2).init(&device) };
    /// let y = layer.forward(Tensor::ones([4, 3], &device), &mut Context::new(&(), false))?;
    /// assert_eq!(y.dims(), [4, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new(side: &'a L::Side, training: bool) -> Self {
        let rng = match training {
            true => KeyedRng::new(0, 0, 0, Range { start: 0, end: 1 }),
            false => KeyedRng::none(),
        };
        Self {
            side,
            rng,
            auxiliary: Vec::new(),
            available: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// The same with other random numbers. They say, too, whether the step trains.
    #[must_use]
    pub fn with_rng(self, rng: KeyedRng) -> Self {
        Self { rng, ..self }
    }

    /// The same with a value that an earlier layer sent.
    #[must_use]
    pub fn with_skip(mut self, name: impl Into<String>, value: L::Flow) -> Self {
        self.available.push((name.into(), value));
        self
    }

    /// The side input of this micro-batch, on the layer's device.
    #[must_use]
    pub fn side(&self) -> &'a L::Side {
        self.side
    }

    /// Whether the step trains: false under `infer`.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.rng.is_training()
    }

    /// The layer's random numbers for this micro-batch: the same ones whenever and wherever the layer
    /// is run again for it.
    #[must_use]
    pub fn rng(&mut self) -> &mut KeyedRng {
        &mut self.rng
    }

    /// Sends a value to the later layers that take it by this name, straight to where they are. The
    /// layer declares it in [`Layer::skips`].
    pub fn send(&mut self, name: impl Into<String>, value: L::Flow) {
        self.sent.push((name.into(), value));
    }

    /// Takes the value that an earlier layer sent by this name. The layer declares it in
    /// [`Layer::skips`].
    ///
    /// # Errors
    ///
    /// If it was not declared, or has been taken by this layer already.
    pub fn take(&mut self, name: &str) -> Result<L::Flow, LayerError> {
        let found = (self.available.iter()).position(|(available, _)| available == name);
        let place = found.ok_or_else(|| {
            let expected = format!("a skip \"{name}\" that is declared and not taken yet");
            let names: Vec<_> = self.available.iter().map(|(name, _)| name).collect();
            LayerError::new(expected, format!("those still to take: {names:?}"))
        })?;
        Ok(self.available.swap_remove(place).1)
    }

    /// Hands out an output of an auxiliary head: a loss before the last stage.
    ///
    /// Where the step trains, the objective's
    /// [`auxiliary_loss`](crate::Objective::auxiliary_loss) of it is added to the loss, and its
    /// gradient flows from here. Elsewhere it is dropped.
    pub fn auxiliary(&mut self, output: L::Output) {
        if self.is_training() {
            self.auxiliary.push(output);
        }
    }

    /// The outputs of auxiliary heads so far.
    #[must_use]
    pub fn into_auxiliary(self) -> Vec<L::Output> {
        self.auxiliary
    }

    /// What was sent so far, by name: what a later layer that is run by hand is given
    /// [with](Self::with_skip) its own context.
    #[must_use]
    pub fn into_sent(self) -> Vec<(String, L::Flow)> {
        self.sent
    }

    /// What the layer left: outputs of auxiliary heads, and what it sent.
    pub(crate) fn into_left(self) -> Left<L> {
        Left {
            auxiliary: self.auxiliary,
            sent: self.sent,
            untaken: self.available.into_iter().map(|(name, _)| name).collect(),
        }
    }
}

/// What a layer left in its context.
pub(crate) struct Left<L: Layer> {
    pub(crate) auxiliary: Vec<L::Output>,
    pub(crate) sent: Vec<(String, L::Flow)>,
    /// The names of what it could have taken, and did not.
    pub(crate) untaken: Vec<String>,
}
