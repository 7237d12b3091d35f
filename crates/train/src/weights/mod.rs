//! Weights from a file, whoever wrote it, into a pipeline.

mod adapt;
mod fit;
mod kind;
mod places;
mod pytorch;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use burn::store::{KeyRemapper, ModuleSnapshot, burn_pack};
use stovepipe_pipeline::{Layer, Pipeline};

use self::{
    fit::{Entries, Fit},
    kind::Kind,
    places::places,
};
use crate::{error::TrainError, other_tensors::OtherTensors, tensor_file};

/// What programs put around a whole model without changing it: data parallelism, and a compiler.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// How a file lays out what Burn and PyTorch lay out differently.
///
/// PyTorch's linear layers have weights `[out, in]`, Burn's `[in, out]`; a norm has `weight` and `bias` there, `gamma`
/// and `beta` here; a batch norm there counts `num_batches_tracked`, which Burn does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// Burn's, as [`save_model`](crate::save_model) writes it.
    Burn,
    /// PyTorch's.
    PyTorch,
}

/// The tensors of a file, to be loaded into a pipeline: safetensors, or what PyTorch's `torch.save` wrote.
///
/// Of the file, no more is read than its table of contents; [`load_into`](Self::load_into) reads one tensor after the
/// other, each onto the device where it belongs, so that neither the file nor the model need fit into this machine's
/// memory. Code in a PyTorch file is never run: it is read for tensors, and other things in it are passed over.
///
/// All of the model's tensors must be in the file, all of the file's in the model, and their shapes the same, as with
/// PyTorch's `load_state_dict`; what is to be otherwise is said, tensor by tensor, with [`without`](Self::without).
///
/// ```
/// use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};
/// use stovepipe_train::{Weights, save_model};
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # impl Layer for Dense {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(x: Tensor<2>) -> Tensor<2> { x }
/// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
/// #         Ok(self.linear.forward(x))
/// #     }
/// #     fn leave(x: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(x) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// // A model that tells three classes, and one that is to tell five.
/// let device = Device::flex();
/// let model = |classes| {
///     let layer = |from, to| Dense { linear: LinearConfig::new(from, to).init(&device) };
///     let layers = vec![layer(4, 8), layer(8, classes)];
///     Pipeline::builder(layers).devices(vec![device.clone(); 2]).build()
/// };
/// save_model(&model(3)?, path.clone())?;
///
/// let weights = Weights::open(&path)?;
/// assert_eq!(weights.shape("layers.1.linear.bias"), Some(&[3][..]));
/// let mut pipeline = model(5)?;
/// let error = weights.load_into(&mut pipeline).unwrap_err().to_string();
/// assert!(error.contains("layers.1.linear.bias is [3], not [5]"), "{error}");
///
/// // All but the classifier, which stays as it is.
/// weights.without(|name| name.starts_with("layers.1.")).load_into(&mut pipeline)?;
/// # Ok(())
/// # }
/// ```
pub struct Weights {
    path: PathBuf,
    tensors: BTreeMap<String, Entry>,
    convention: Option<Convention>,
    passed_over: Vec<Names>,
}

/// Which names are meant.
type Names = Box<dyn Fn(&str) -> bool>;

/// A tensor that is not read yet, and what its file calls it.
struct Entry {
    tensor: burn_pack::Tensor,
    original: String,
}

impl Weights {
    /// Reads the table of contents of a file: safetensors, or a `.pt`, `.pth` or `.bin` of PyTorch, which is told from
    /// what is in it.
    ///
    /// Of a PyTorch checkpoint that holds more than weights, those under `state_dict`, `model_state_dict`, `model`, `net`
    /// or `module` are taken. What `DataParallel` and `torch.compile` put before every name is taken away.
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if the file cannot be opened, [`TrainError::Format`] if it is of no such format, cut off,
    /// damaged where that can be seen, or a PyTorch file whose parts are compressed, which PyTorch's own never are. The
    /// numbers in safetensors have no checksum; a PyTorch file's have, which is compared when they are loaded.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        let path = path.into();
        let (tensors, convention) = match Kind::of(&path)? {
            Kind::Safetensors => {
                let (tensors, format) = tensor_file::open(&path)?;
                (tensors, format.as_deref().and_then(convention_of))
            }
            Kind::PyTorch(container) => {
                (pytorch::open(&path, container)?, Some(Convention::PyTorch))
            }
        };
        let entries = tensors.into_iter().map(|tensor| Entry {
            original: tensor.name.clone(),
            tensor,
        });
        let entries = unwrapped(entries.collect());
        Ok(Self {
            tensors: by_name(&path, entries)?,
            path,
            convention,
            passed_over: Vec::new(),
        })
    }

    /// Says whose convention the file follows, where it does not say itself or is wrong.
    ///
    /// Safetensors say so in their metadata, if at all: `format` is `pt` in those of PyTorch, and `burn` in what
    /// [`save_model`](crate::save_model) writes. Of others it is found when they are loaded, from the names of the
    /// norms' parameters and the shapes of linear layers.
    #[must_use]
    pub fn of(mut self, convention: Convention) -> Self {
        self.convention = Some(convention);
        self
    }

    /// Renames the tensors, as a model's mapping says: `AmoebaNetDConfig::torch_keys`, `VitConfig::timm_keys` and so on.
    /// Names that are a pipeline's already stay as they are, so that one need not know whose a file is.
    ///
    /// A mapping may give names of a list of layers, `3.norm.gamma`, which are `layers.3.norm.gamma` then.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if two tensors come to have one name.
    pub fn renamed(mut self, keys: &KeyRemapper) -> Result<Self, TrainError> {
        let (originals, tensors): (Vec<_>, _) = (self.tensors.into_values())
            .map(|entry| (entry.original, entry.tensor))
            .unzip();
        let (tensors, _) = keys.remap(tensors);
        let entries = tensors.into_iter().zip(originals);
        let entries = entries.map(|(mut tensor, original)| {
            tensor.name = of_pipeline(tensor.name);
            Entry { tensor, original }
        });
        self.tensors = by_name(&self.path, entries.collect())?;
        Ok(self)
    }

    /// Passes over tensors: those of the file with such names are not loaded, those of the model stay as they are. Names
    /// are as [`renamed`](Self::renamed) made them.
    #[must_use]
    pub fn without(mut self, passed_over: impl Fn(&str) -> bool + 'static) -> Self {
        self.passed_over.push(Box::new(passed_over));
        self
    }

    /// The names of all tensors in the file, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor as the file has it; none if there is no such tensor.
    ///
    /// The number of classes that a classifier tells is best asked of its bias: the two dimensions of a weight have
    /// another order in PyTorch's files.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let entry = self.tensors.get(name)?;
        Some(&entry.tensor.shape)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads the tensors into a pipeline, however many stages it has, one after the other.
    ///
    /// Floating-point numbers become those that the model has. Of PyTorch's, linear layers' weights are turned, norms'
    /// parameters renamed, counts of batches passed over; a dimension of one before the others goes away, and a
    /// convolution that is a linear layer here is flattened.
    ///
    /// # Errors
    ///
    /// [`TrainError::OtherModel`], with names and before the pipeline has changed, if tensors are missing, there are others,
    /// or some have other shapes. [`TrainError::Format`] if nothing tells whose [`Convention`] a file follows; or if some
    /// tensors turn out to be unreadable, but then the others have been loaded.
    pub fn load_into<L: Layer>(&self, pipeline: &mut Pipeline<L>) -> Result<(), TrainError> {
        let mut places = places(pipeline);
        places.retain(|place| !self.passes_over(&place.name));
        let mut entries = self.entries()?;
        entries.retain(|name, _| !self.passes_over(name));
        let Fit { tensors, other } = match self.convention {
            Some(convention) => Fit::new(&entries, &places, convention),
            None => {
                let convention = fit::convention(&entries, &places);
                Fit::new(&entries, &places, convention.ok_or_else(|| self.untold())?)
            }
        };
        self.check(other)?;
        let result = pipeline.apply(tensors, None, None, true);
        match OtherTensors::refused(result.errors) {
            refused if refused == OtherTensors::default() => Ok(()),
            refused => Err(TrainError::format(&self.path, refused)),
        }
    }

    /// The tensors by the names that a pipeline would give them.
    fn entries(&self) -> Result<Entries<'_>, TrainError> {
        let mut entries = Entries::new();
        for (name, entry) in &self.tensors {
            let name = of_pipeline(name.clone());
            if entries.insert(name.clone(), entry).is_some() {
                let reason = format!("it has {name} twice, once without layers");
                return Err(TrainError::format(&self.path, reason));
            }
        }
        Ok(entries)
    }

    fn passes_over(&self, name: &str) -> bool {
        self.passed_over.iter().any(|passes| passes(name))
    }

    fn check(&self, tensors: OtherTensors) -> Result<(), TrainError> {
        match tensors == OtherTensors::default() {
            true => Ok(()),
            false => Err(TrainError::OtherModel {
                path: self.path.clone(),
                tensors: Box::new(tensors),
            }),
        }
    }

    fn untold(&self) -> TrainError {
        let reason = "nothing in it tells whether it is Burn's or PyTorch's, whose linear layers are turned: say which \
                      (its metadata can, with `format` burn or pt)";
        TrainError::format(&self.path, reason)
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Weights")
            .field("path", &self.path)
            .field("tensors", &self.tensors.len())
            .field("convention", &self.convention)
            .finish_non_exhaustive()
    }
}

/// What the metadata of safetensors say.
fn convention_of(format: &str) -> Option<Convention> {
    match format {
        tensor_file::BURN => Some(Convention::Burn),
        "pt" => Some(Convention::PyTorch),
        _ => None,
    }
}

/// Takes away what is before all names.
fn unwrapped(mut entries: Vec<Entry>) -> Vec<Entry> {
    let wrapper = |entries: &[Entry]| {
        let mut wrappers = WRAPPERS.into_iter();
        wrappers.find(|wrapper| {
            !entries.is_empty() && entries.iter().all(|e| e.tensor.name.starts_with(wrapper))
        })
    };
    while let Some(wrapper) = wrapper(&entries) {
        for entry in &mut entries {
            entry.tensor.name.drain(..wrapper.len());
        }
    }
    entries
}

fn by_name(path: &Path, entries: Vec<Entry>) -> Result<BTreeMap<String, Entry>, TrainError> {
    let mut all = BTreeMap::new();
    for entry in entries {
        let (name, original) = (entry.tensor.name.clone(), entry.original.clone());
        if let Some(other) = all.insert(name.clone(), entry) {
            let reason = format!("{} and {original} would both be {name}", other.original);
            return Err(TrainError::format(path, reason));
        }
    }
    Ok(all)
}

/// A name in a list of layers as a pipeline has it: `3.bias` is `layers.3.bias`.
fn of_pipeline(name: String) -> String {
    match name.split_once('.') {
        Some((index, _)) if index.parse::<usize>().is_ok() => format!("layers.{name}"),
        _ => name,
    }
}
