//! Skips: which layer sends what to which. Checked before anything runs.

use std::{collections::HashMap, fmt};

use thiserror::Error;

/// A value that a layer sends past other layers, or takes from an earlier layer.
///
/// It is of the model's type [`Flow`](crate::Layer::Flow). It goes directly from the sender's stage to
/// the stages that take it, and its gradient goes directly back.
///
/// ```
/// use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline, SkipUse};
///
/// #[derive(Module, Debug)]
/// enum Part {
///     Begin(Linear),
///     Middle(Linear),
///     End(Linear),
/// }
///
/// impl Layer for Part {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
/// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
///     fn skips(&self) -> Vec<SkipUse> {
///         match self {
///             Self::Begin(_) => vec![SkipUse::send("early")],
///             Self::Middle(_) => vec![],
///             Self::End(_) => vec![SkipUse::take("early")],
///         }
///     }
///
///     fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
///         Ok(match self {
///             Self::Begin(linear) => {
///                 context.send("early", x.clone());
///                 linear.forward(x)
///             }
///             Self::Middle(linear) => linear.forward(x),
///             Self::End(linear) => linear.forward(x) + context.take("early")?,
///         })
///     }
/// }
///
/// let device = Device::flex();
/// let linear = || LinearConfig::new(4, 4).init(&device);
/// let build = |layers| Pipeline::builder(layers).devices([device.clone()]).build();
/// assert!(build(vec![Part::Begin(linear()), Part::Middle(linear()), Part::End(linear())]).is_ok());
/// assert!(build(vec![Part::Begin(linear()), Part::Middle(linear())]).is_err()); // nobody takes it
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipUse {
    /// The layer sends it.
    Send(String),
    /// The layer takes it.
    Take(String),
}

impl SkipUse {
    /// The layer sends a value with this name.
    #[must_use]
    pub fn send(name: impl Into<String>) -> Self {
        Self::Send(name.into())
    }

    /// The layer takes the value with this name.
    #[must_use]
    pub fn take(name: impl Into<String>) -> Self {
        Self::Take(name.into())
    }
}

/// Why the skips of a model do not match.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WiringError {
    /// No layer takes it.
    #[error("{layer} sends the skip \"{name}\", which no later layer takes")]
    NeverTaken {
        /// The skip.
        name: String,
        /// The layer that sends it.
        layer: LayerName,
    },
    /// No layer sends it.
    #[error("{layer} takes the skip \"{name}\", which no layer sends")]
    NeverSent {
        /// The skip.
        name: String,
        /// The layer that takes it.
        layer: LayerName,
    },
    /// A layer takes it before, or in the same layer as, it is sent.
    #[error("{taker} takes the skip \"{name}\", which {sender} does not send earlier")]
    TakenBeforeSent {
        /// The skip.
        name: String,
        /// The layer that takes it.
        taker: LayerName,
        /// The layer that sends it.
        sender: LayerName,
    },
    /// Two layers send a value with the same name.
    #[error("{first} and {second} both send a skip \"{name}\": use different names")]
    SentTwice {
        /// The skip.
        name: String,
        /// The first layer that sends one.
        first: LayerName,
        /// The second.
        second: LayerName,
    },
    /// A layer declares twice that it takes it.
    #[error(
        "{layer} declares twice that it takes the skip \"{name}\": once is enough, clone the value"
    )]
    TakenTwice {
        /// The skip.
        name: String,
        /// The layer.
        layer: LayerName,
    },
}

/// A layer's index and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerName {
    /// Its index in the model.
    pub index: usize,
    /// Its name.
    pub name: String,
}

impl fmt::Display for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} ({})", self.index, self.name)
    }
}

/// The skips of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wiring {
    pub(crate) skips: Vec<Skip>,
    /// What each layer sends and takes, as indices into `skips`, in the order of declaration.
    pub(crate) sends: Vec<Vec<usize>>,
    pub(crate) takes: Vec<Vec<usize>>,
}

/// A value that skips layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) name: String,
    pub(crate) sender: usize,
    /// In order; at least one.
    pub(crate) takers: Vec<usize>,
}

impl Wiring {
    /// Checks what each layer sends and takes. `name` gives a layer's name.
    pub(crate) fn new(
        uses: &[Vec<SkipUse>],
        name: &dyn Fn(usize) -> String,
    ) -> Result<Self, WiringError> {
        let layer: &dyn Fn(usize) -> LayerName = &|index| LayerName {
            index,
            name: name(index),
        };
        let mut wiring = Self {
            skips: Vec::new(),
            sends: vec![Vec::new(); uses.len()],
            takes: vec![Vec::new(); uses.len()],
        };
        let by_name = wiring.add_senders(uses, layer)?;
        wiring.add_takers(uses, &by_name, layer)?;
        match wiring.skips.iter().find(|skip| skip.takers.is_empty()) {
            Some(skip) => Err(WiringError::NeverTaken {
                name: skip.name.clone(),
                layer: layer(skip.sender),
            }),
            None => Ok(wiring),
        }
    }

    /// Returns the index of each skip by name.
    fn add_senders<'a>(
        &mut self,
        uses: &'a [Vec<SkipUse>],
        layer: &dyn Fn(usize) -> LayerName,
    ) -> Result<HashMap<&'a str, usize>, WiringError> {
        let mut by_name = HashMap::new();
        for (index, skip) in with_layers(uses) {
            let SkipUse::Send(name) = skip else { continue };
            if let Some(first) = by_name.insert(&**name, self.skips.len()) {
                return Err(WiringError::SentTwice {
                    name: name.clone(),
                    first: layer(self.skips[first].sender),
                    second: layer(index),
                });
            }
            self.sends[index].push(self.skips.len());
            self.skips.push(Skip {
                name: name.clone(),
                sender: index,
                takers: Vec::new(),
            });
        }
        Ok(by_name)
    }

    fn add_takers(
        &mut self,
        uses: &[Vec<SkipUse>],
        by_name: &HashMap<&str, usize>,
        of: &dyn Fn(usize) -> LayerName,
    ) -> Result<(), WiringError> {
        for (index, skip) in with_layers(uses) {
            let SkipUse::Take(name) = skip else { continue };
            let (name, layer) = (name.clone(), of(index));
            let Some(&place) = by_name.get(&*name) else {
                return Err(WiringError::NeverSent { name, layer });
            };
            let skip = &mut self.skips[place];
            if skip.sender >= index {
                let (taker, sender) = (layer, of(skip.sender));
                return Err(WiringError::TakenBeforeSent {
                    name,
                    taker,
                    sender,
                });
            }
            if skip.takers.last() == Some(&index) {
                return Err(WiringError::TakenTwice { name, layer });
            }
            skip.takers.push(index);
            self.takes[index].push(place);
        }
        Ok(())
    }
}

/// All uses, each with the index of its layer.
fn with_layers(uses: &[Vec<SkipUse>]) -> impl Iterator<Item = (usize, &SkipUse)> {
    let layers = uses.iter().enumerate();
    layers.flat_map(|(index, uses)| uses.iter().map(move |skip| (index, skip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers as words: `+a` sends, `-a` takes.
    fn wiring(layers: &[&str]) -> Result<Wiring, String> {
        let skip = |word: &str| match word.split_at(1) {
            ("+", name) => SkipUse::send(name),
            (_, name) => SkipUse::take(name),
        };
        let of_layer = |layer: &&str| layer.split_whitespace().map(skip).collect();
        let uses: Vec<Vec<_>> = layers.iter().map(of_layer).collect();
        Wiring::new(&uses, &|_| "L".to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn senders_find_their_takers() -> Result<(), String> {
        let found = wiring(&["+a", "+b -a", "", "-b -a"])?;
        let skip = |name: &str, sender, takers: &[usize]| Skip {
            name: name.to_owned(),
            sender,
            takers: takers.to_vec(),
        };
        assert_eq!(found.skips, [skip("a", 0, &[1, 3]), skip("b", 1, &[3])]);
        assert_eq!(found.sends, [vec![0], vec![1], vec![], vec![]]);
        assert_eq!(found.takes, [vec![], vec![0], vec![], vec![1, 0]]);
        Ok(())
    }

    #[test]
    fn mistakes_name_the_skip_and_the_layers() {
        let check = |layers: &[&str], expected: &str| {
            assert_eq!(wiring(layers), Err(expected.to_owned()));
        };
        let never_taken = "layer 0 (L) sends the skip \"a\", which no later layer takes";
        check(&["+a", ""], never_taken);
        let never_sent = "layer 1 (L) takes the skip \"a\", which no layer sends";
        check(&["", "-a"], never_sent);
        let early = "layer 0 (L) takes the skip \"a\", which layer 1 (L) does not send earlier";
        check(&["-a", "+a", "-a"], early);
        let own = "layer 0 (L) takes the skip \"a\", which layer 0 (L) does not send earlier";
        check(&["+a -a", "-a"], own);
        let sent_twice = "layer 0 (L) and layer 1 (L) both send a skip \"a\": use different names";
        check(&["+a", "+a", "-a"], sent_twice);
        let taken_twice = "layer 1 (L) declares twice that it takes the skip \"a\": once is enough, clone the value";
        check(&["+a", "-a -a"], taken_twice);
    }
}
