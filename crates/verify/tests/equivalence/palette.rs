//! Layers for test models, and data for them.

use burn::{
    module::{Module, Param},
    nn::{
        BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm,
        LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Bool, Device, Int, Tensor, activation::softmax},
};
use stovepipe_pipeline::{
    Batch, Context, Flow, KeyedRng, Layer, LayerError, SkipUse,
    nn::{DropPath, Dropout, GaussianNoise},
};

pub fn cpu() -> Device {
    Device::flex()
}

/// What passes between layers: neighbouring layers may differ in shape.
#[derive(Clone, Debug, Flow)]
pub enum Value {
    Words(Tensor<2, Int>),
    Vectors(Tensor<2>),
    Sequences(Tensor<3>),
    Maps(Tensor<4>),
    /// A sum over layers, and the value that they all read.
    Pair(Tensor<2>, Tensor<2>),
}

/// A layer of any kind. Input and output may be of different kinds.
#[derive(Module, Debug)]
pub enum Part {
    Linear(Linear),
    /// Reads its input four times.
    Four(Linear),
    /// Starts a sum, to which each `Read` adds.
    Begin(Linear),
    Read(Linear),
    Noisy(Noisy),
    Skip(Skip),
    Head(Head),
    Norm(NormedLinear),
    Convolution(Convolution),
    Pool(Linear),
    Unfold(Linear),
    Embed(Embedding),
    Block(Block),
    Tied(Table),
    TiedHead(Table),
}

#[derive(Module, Debug)]
pub struct Noisy {
    pub linear: Linear,
    pub dropout: Dropout,
    pub path: DropPath,
    pub noise: GaussianNoise,
}

#[derive(Module, Debug)]
pub struct Skip {
    pub linear: Linear,
    #[module(skip)]
    pub uses: Vec<SkipUse>,
}

#[derive(Module, Debug)]
pub struct Head {
    pub linear: Linear,
    pub aside: Linear,
}

#[derive(Module, Debug)]
pub struct NormedLinear {
    pub linear: Linear,
    pub norm: BatchNorm,
}

#[derive(Module, Debug)]
pub struct Convolution {
    pub convolution: Conv2d,
    pub norm: BatchNorm,
}

#[derive(Module, Debug)]
pub struct Table {
    pub weight: Param<Tensor<2>>,
}

/// A Transformer block: attention and a feed-forward network, each with dropout, layer norm before.
#[derive(Module, Debug)]
pub struct Block {
    pub norms: [LayerNorm; 2],
    pub query_key_value: [Linear; 3],
    pub out: Linear,
    pub feed: [Linear; 2],
    pub dropout: Dropout,
    #[module(skip)]
    pub heads: usize,
}

/// The side input: which places of a sequence are padding.
pub type Side = Option<Tensor<2, Bool>>;

impl Layer for Part {
    type Input = Value;
    type Flow = Value;
    type Output = Tensor<2>;
    type Side = Side;

    fn enter(input: Value) -> Value {
        input
    }

    fn skips(&self) -> Vec<SkipUse> {
        match self {
            Self::Skip(skip) => skip.uses.clone(),
            _ => Vec::new(),
        }
    }

    fn forward(&self, value: Value, context: &mut Context<'_, Self>) -> Result<Value, LayerError> {
        match (self, value) {
            (Self::Begin(linear), Value::Vectors(x)) => {
                Ok(Value::Pair(linear.forward(x.clone()), x))
            }
            (Self::Read(linear), Value::Pair(sum, x)) => {
                Ok(Value::Pair(sum + linear.forward(x.clone()).tanh(), x))
            }
            (Self::Linear(linear), Value::Pair(sum, x)) => {
                Ok(Value::Vectors(linear.forward(sum * x).tanh()))
            }
            (_, Value::Vectors(x)) => self.vectors(x, context),
            (Self::Convolution(conv), Value::Maps(x)) => Ok(Value::Maps(
                conv.norm.forward(conv.convolution.forward(x).tanh()),
            )),
            (Self::Pool(linear), Value::Maps(x)) => {
                let pooled = x.mean_dim(3).mean_dim(2).flatten(1, 3);
                Ok(Value::Vectors(linear.forward(pooled).tanh()))
            }
            (Self::Embed(embedding), Value::Words(words)) => {
                Ok(Value::Sequences(embedding.forward(words)))
            }
            (Self::Tied(table), Value::Words(words)) => {
                let [samples, length] = words.dims().map(|size| size as i32);
                let vectors = table.weight.val().select(0, words.flatten(0, 1));
                Ok(Value::Sequences(vectors.reshape([samples, length, -1])))
            }
            (Self::Block(block), Value::Sequences(x)) => {
                let side = context.side().clone();
                Ok(Value::Sequences(block.forward(x, side, context.rng())))
            }
            // A row for each token.
            (Self::TiedHead(table), Value::Sequences(x)) => {
                let logits = x.flatten::<2>(0, 1).matmul(table.weight.val().transpose());
                Ok(Value::Vectors(logits))
            }
            (Self::Pool(linear), Value::Sequences(x)) => {
                Ok(Value::Vectors(linear.forward(x.mean_dim(1).flatten(1, 2))))
            }
            (_, value) => Err(LayerError::new("another value", format!("{value:?}"))),
        }
    }

    fn leave(flow: Value) -> Result<Tensor<2>, LayerError> {
        match flow {
            Value::Vectors(x) => Ok(x),
            other => Err(LayerError::new("vectors", format!("{other:?}"))),
        }
    }
}

impl Part {
    fn vectors(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Result<Value, LayerError> {
        Ok(Value::Vectors(match self {
            Self::Linear(linear) => linear.forward(x).tanh(),
            Self::Four(linear) => {
                let y = linear.forward(x.clone()).tanh();
                y + x.clone().powi_scalar(2) + x.clone().sin() * x.clone().mul_scalar(0.3) - x
            }
            Self::Noisy(noisy) => {
                let rng = context.rng();
                let y = noisy.dropout.forward(x.clone(), rng);
                let y = noisy.linear.forward(y).tanh();
                noisy.noise.forward(x, rng) + noisy.path.forward(y, rng)
            }
            Self::Skip(skip) => {
                let mut y = skip.linear.forward(x.clone()).tanh();
                for skip in &skip.uses {
                    match skip {
                        SkipUse::Take(name) => {
                            let taken = Self::leave(context.take(name)?)?;
                            y = y * 0.8 + taken.mul_scalar(0.5);
                        }
                        SkipUse::Send(name) => {
                            context.send(name, Value::Vectors(x.clone() + y.clone()));
                        }
                    }
                }
                y
            }
            Self::Head(head) => {
                context.auxiliary(head.aside.forward(x.clone()));
                head.linear.forward(x).tanh()
            }
            Self::Norm(norm) => {
                let y = norm.linear.forward(x).unsqueeze_dim::<3>(2);
                norm.norm.forward(y).squeeze_dim::<2>(2).tanh()
            }
            Self::Unfold(linear) => {
                let y = linear.forward(x);
                let [samples, width] = y.dims();
                return Ok(Value::Maps(y.reshape([samples, width / 16, 4, 4])));
            }
            _ => return Err(LayerError::new("another value", "vectors")),
        }))
    }
}

impl Block {
    fn forward(&self, x: Tensor<3>, padding: Side, rng: &mut KeyedRng) -> Tensor<3> {
        let attended = self.attend(self.norms[0].forward(x.clone()), padding, rng);
        let x = x + self.dropout.forward(attended, rng);
        let hidden = self.feed[0].forward(self.norms[1].forward(x.clone()));
        let fed = self.feed[1].forward(burn::tensor::activation::gelu(hidden));
        x + self.dropout.forward(fed, rng)
    }

    fn attend(&self, x: Tensor<3>, padding: Side, rng: &mut KeyedRng) -> Tensor<3> {
        let [samples, length, width] = x.dims();
        let own_width = width / self.heads;
        let [query, key, value] = self.query_key_value.each_ref().map(|linear| {
            let x = linear.forward(x.clone());
            let x = x.reshape([samples, length, self.heads, own_width]);
            x.swap_dims(1, 2)
        });
        let scores = query.matmul(key.transpose());
        let mut scores = scores.div_scalar((own_width as f64).sqrt());
        if let Some(padding) = padding {
            let mask = padding.unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(1);
            scores = scores.mask_fill(mask.expand([samples, self.heads, length, length]), -1e9);
        }
        let weights = self.dropout.forward(softmax(scores, 3), rng);
        let mixed = weights.matmul(value).swap_dims(1, 2);
        self.out.forward(mixed.reshape([samples, length, width]))
    }
}

pub fn linear(from: usize, to: usize) -> Linear {
    LinearConfig::new(from, to).init(&cpu())
}

pub fn noisy(width: usize) -> Part {
    Part::Noisy(Noisy {
        linear: linear(width, width),
        dropout: Dropout::new(0.3),
        path: DropPath::new(0.3),
        noise: GaussianNoise::new(0.1),
    })
}

pub fn normed(from: usize, to: usize) -> Part {
    Part::Norm(NormedLinear {
        linear: linear(from, to),
        norm: BatchNormConfig::new(to).init(&cpu()),
    })
}

pub fn head(width: usize, classes: usize) -> Part {
    Part::Head(Head {
        linear: linear(width, width),
        aside: linear(width, classes),
    })
}

/// Uses as words: `+a` sends, `-a` takes.
pub fn skip(width: usize, uses: &str) -> Part {
    let uses = uses.split_whitespace().map(|word| match word.split_at(1) {
        ("+", name) => SkipUse::send(name),
        (_, name) => SkipUse::take(name),
    });
    Part::Skip(Skip {
        linear: linear(width, width),
        uses: uses.collect(),
    })
}

pub fn long_skips() -> Vec<Part> {
    let uses = ["+a", "+b +c", "-a", "-b +d", "-b", "-c -d"];
    uses.map(|uses| skip(6, uses)).to_vec()
}

/// From 6 wide to 3 classes.
pub fn every_randomness() -> Vec<Part> {
    let last = Part::Linear(linear(6, 3));
    vec![noisy(6), noisy(6), head(6, 3), noisy(6), last]
}

pub fn convolution(from: usize, to: usize) -> Part {
    let convolution = Conv2dConfig::new([from, to], [3, 3])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(&cpu());
    Part::Convolution(Convolution {
        convolution,
        norm: BatchNormConfig::new(to).init(&cpu()),
    })
}

/// A table of 7 words, 6 wide.
pub fn table(initializer: Initializer) -> Table {
    let weight = initializer.init_with([7, 6], Some(6), Some(7), &cpu());
    Table { weight }
}

pub fn embed(words: usize, width: usize) -> Part {
    Part::Embed(EmbeddingConfig::new(words, width).init(&cpu()))
}

pub fn block(width: usize, heads: usize) -> Part {
    let norm = || LayerNormConfig::new(width).init(&cpu());
    Part::Block(Block {
        norms: [norm(), norm()],
        query_key_value: [(); 3].map(|()| linear(width, width)),
        out: linear(width, width),
        feed: [linear(width, 2 * width), linear(2 * width, width)],
        dropout: Dropout::new(0.2),
        heads,
    })
}

/// Pseudorandom numbers, without a generator that other tests share.
pub fn pattern<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let places = 0..shape.iter().product::<usize>();
    let values = places.map(|i| ((i as f32 * 12.9898).sin() * 43_758.547).fract());
    let values: Vec<f32> = values.collect();
    Tensor::<1>::from_floats(values.as_slice(), &cpu()).reshape(shape)
}

pub fn labels<const D: usize>(shape: [usize; D], classes: usize) -> Tensor<D, Int> {
    let count = shape.iter().product::<usize>();
    let values: Vec<i64> = (0..count).map(|i| ((i * 7 + 3) % classes) as i64).collect();
    Tensor::<1, Int>::from_ints(values.as_slice(), &cpu()).reshape(shape)
}

pub fn vectors(samples: usize, width: usize, classes: usize) -> Batch<Value, Tensor<1, Int>, Side> {
    let vectors = Value::Vectors(pattern([samples, width]));
    Batch::from((vectors, labels([samples], classes), None))
}
