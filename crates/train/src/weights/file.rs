//! Weights from a file.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use burn::{
    store::{KeyRemapper, ModuleSnapshot, bridge, burn_pack},
    tensor::TensorData,
};
use stovepipe_pipeline::{Layer, Pipeline};

use super::{
    burnpack,
    fit::{Entries, Entry, Fit, convention, differs},
    format::{BASE, BURN, Convention, FORMAT, FileFormat, FileMetadata, PYTORCH},
    hub,
    other_tensors::OtherTensors,
    places::{impossible, places},
    pytorch, tensor_file,
    tensor_sums::TensorSums,
    together::SharedTensors,
};
use crate::{error::TrainError, processes::Processes};

const UNKNOWN: &str = "nothing in it shows whether its layout is Burn's or PyTorch's: name the \
                       convention (in its metadata, `format` burn or pt)";

/// Prefixes of all names: of `DataParallel`, and of `torch.compile`.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// The tensors of a file for a pipeline: safetensors, Burn's burnpack, or a file of PyTorch's `torch.save`.
///
/// Opening a file reads its table of contents only. [`load_into`](Self::load_into) reads one tensor
/// at a time, to its device, so that neither the file nor the model must fit into this machine's
/// memory. Code in a PyTorch file never runs.
///
/// As with PyTorch's `load_state_dict`, file and model must have the same tensors with the same
/// shapes. [`without`](Self::without) makes exceptions.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Weights, example::Dense, save_model};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// // Fine-tune a model of three classes for five.
/// let model = |classes| {
///     let layers = vec![Dense::new(4, 8), Dense::new(8, classes)];
///     Pipeline::builder(layers).devices(vec![Device::flex(); 2]).build()
/// };
/// save_model(&model(3)?, path.clone())?;
///
/// let weights = Weights::open(&path)?;
/// assert_eq!(weights.shape("layers.1.linear.bias"), Some(&[3][..]));
/// let bias = weights.tensor("layers.1.linear.bias")?;
/// assert_eq!(bias.map(|bias| bias.num_elements()), Some(3));
/// let mut pipeline = model(5)?;
/// let error = weights.load_into(&mut pipeline).unwrap_err().to_string();
/// assert!(error.contains("layers.1.linear.bias is [3], not [5]"), "{error}");
///
/// // All but the classifier.
/// weights.without(|name| name.starts_with("layers.1.")).load_into(&mut pipeline)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Weights {
    path: PathBuf,
    pub(super) processes: Processes,
    file: SharedTensors,
    tensors: BTreeMap<String, Entry>,
    pub(super) sums: TensorSums,
    convention: Option<Convention>,
    metadata: FileMetadata,
    skipped: Vec<Names>,
    /// Which tensors the file may lack, and which it may have besides.
    allowed: [Names; 2],
}

type Names = Box<dyn Fn(&str) -> bool>;

impl Weights {
    /// Reads the table of contents of a file: safetensors, Burn's `.bpk`, or PyTorch's `.pt`, `.pth` or
    /// `.bin`. The content says which, not the name.
    ///
    /// A folder of the Hugging Face Hub has `model.safetensors`, or several files and
    /// `model.safetensors.index.json`; an adapter of PEFT has `adapter_model.safetensors`.
    ///
    /// In a PyTorch checkpoint with more than weights, looks under `state_dict`, `model_state_dict`,
    /// `model`, `net` and `module`. Removes the prefixes of `DataParallel` and `torch.compile`.
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if the file cannot be opened, [`TrainError::Format`] if it has another
    /// format, is cut off or damaged, or is a PyTorch file with compressed parts, which PyTorch never
    /// writes. Only PyTorch files have checksums of the numbers; loading compares them.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        Self::open_in(&Processes::default(), path)
    }

    /// Opens a file for a pipeline in several processes: all call this, and then the same other methods. The
    /// first one opens the file, and reads the tensors that the others need, one at a time.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), in all processes.
    pub fn open_in(processes: &Processes, path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        let path = path.into();
        let (tensors, metadata) = (processes.first(|| contents(&path))?).unwrap_or_default();
        let metadata = processes.of_first(metadata)?;
        let sums = TensorSums::default();
        let tensors = tensors.into_iter().map(|tensor| sums.watch(tensor));
        let file = SharedTensors::new(processes, tensors.collect())?;
        let tensors = file.tensors().to_vec();
        let entries = tensors.into_iter().map(|tensor| Entry {
            original: tensor.name.clone(),
            tensor,
        });
        let entries = unwrapped(entries.collect());
        Ok(Self {
            tensors: by_name(&path, entries)?,
            path,
            processes: processes.clone(),
            file,
            sums,
            convention: None,
            metadata,
            skipped: Vec::new(),
            allowed: [Box::new(|_| false), Box::new(|_| false)],
        })
    }

    /// Says which convention the file follows.
    ///
    /// By default, the names of norms' parameters and the shapes of linear layers show it. If they do
    /// not, the format does: files of `torch.save` are PyTorch's, and the metadata of safetensors have
    /// a `format`, which is `pt` in files of PyTorch, and `burn` in files of
    /// [`save_model`](crate::save_model).
    #[must_use]
    pub fn of(mut self, convention: Convention) -> Self {
        self.convention = Some(convention);
        self
    }

    /// Renames the tensors by a model's mapping, such as `AmoebaNetDConfig::torch_keys` or
    /// `VitConfig::timm_keys`. Names that are already a pipeline's do not change.
    ///
    /// A name in a list of layers, `3.norm.gamma`, becomes `layers.3.norm.gamma`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if two tensors get the same name.
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

    /// Skips tensors by their names, after [`renamed`](Self::renamed): those of the model do not
    /// change.
    #[must_use]
    pub fn without(mut self, skips: impl Fn(&str) -> bool + 'static) -> Self {
        self.skipped.push(Box::new(skips));
        self
    }

    /// Allows the file to lack tensors of the model, by their names in the model: they keep their values.
    #[must_use]
    pub fn allowing_missing(mut self, allows: impl Fn(&str) -> bool + 'static) -> Self {
        self.allowed[0] = Box::new(allows);
        self
    }

    /// Allows the file to have other tensors, by their names in the file.
    #[must_use]
    pub fn allowing_extra(mut self, allows: impl Fn(&str) -> bool + 'static) -> Self {
        self.allowed[1] = Box::new(allows);
        self
    }

    /// Converts a tensor that has another number of elements than `shape`, such as position embeddings
    /// for images of another size. Returns whether it was converted; it is not if `convert` returns
    /// `None`, or there is no such tensor.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if it cannot be read.
    pub fn resize(
        &mut self,
        name: &str,
        shape: &[usize],
        convert: impl FnOnce(&[f32]) -> Option<Vec<f32>>,
    ) -> Result<bool, TrainError> {
        let Some(entry) = self.tensors.get_mut(name) else {
            return Ok(false);
        };
        let elements = |shape: &[usize]| shape.iter().product::<usize>();
        if elements(&entry.tensor.shape) == elements(shape) {
            return Ok(false);
        }
        let data = read(&self.file, &self.path, entry)?;
        let Some(numbers) = convert(&data.iter::<f32>().collect::<Vec<_>>()) else {
            return Ok(false);
        };
        let data = TensorData::new(numbers, shape.to_vec());
        entry.tensor = bridge::from_data(data, name.to_owned(), None);
        Ok(true)
    }

    /// Whether two tensors of the file have other numbers. `false` if one is not there.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if one cannot be read.
    pub fn differ(&self, names: &[String; 2]) -> Result<bool, TrainError> {
        let [first, second] = names;
        let pair = self.tensor(first)?.zip(self.tensor(second)?);
        Ok(pair.is_some_and(|(first, second)| first != second))
    }

    /// Reads a tensor, if there is one of this name.
    ///
    /// # Errors
    ///
    /// [`TrainError::Format`] if it cannot be read.
    pub fn tensor(&self, name: &str) -> Result<Option<TensorData>, TrainError> {
        let entry = self.tensors.get(name);
        let data = entry.map(|entry| read(&self.file, &self.path, entry));
        data.transpose()
    }

    /// The sorted names of all tensors in the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor in the file, if there is one of this name.
    ///
    /// The bias of a classifier gives the number of its classes. A weight's dimensions are swapped in
    /// PyTorch's files.
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

    /// Loads the tensors into a pipeline of any number of stages, one at a time. Returns the missing and
    /// extra ones that were allowed.
    ///
    /// Converts numbers to the model's precision. In PyTorch's files, transposes the weights of linear
    /// layers, renames norms' parameters, skips counts of batches, removes leading dimensions of one,
    /// and flattens convolutions that are linear layers here.
    ///
    /// # Errors
    ///
    /// [`TrainError::OtherModel`], before the pipeline has changed, if tensors are missing, extra or of
    /// other shapes. [`TrainError::Format`] if the [`Convention`] is unknown, or if some tensors are
    /// unreadable or have impossible values (NaN, infinity, a variance below zero); then the others have been loaded.
    pub fn load_into<L: Layer>(
        &self,
        pipeline: &mut Pipeline<L>,
    ) -> Result<OtherTensors, TrainError> {
        let fitting = self.fitting(pipeline.layers());
        let (tensors, allowed) = self.processes.agree(fitting)?;
        let applied = (self.file).reading(|| pipeline.apply(tensors, None, None, true))?;
        let refused = OtherTensors::refused(applied.errors);
        let reason = match refused == OtherTensors::default() {
            true => impossible(pipeline.layers()),
            false => Some(refused.to_string()),
        };
        let failure = reason.map(|reason| TrainError::format(&self.path, reason));
        self.processes.agree(failure.map_or(Ok(()), Err))?;
        pipeline.move_to_workers()?;
        Ok(allowed)
    }

    /// The checksum of the weights that the file leaves out, if it is one of
    /// [`Base::save`](crate::weights::Base::save).
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        self.metadata.get(BASE).map(String::as_str)
    }

    /// Checks in advance that [`load_into`](Self::load_into) finds the tensors of a pipeline with these
    /// layers, whose parameters are not drawn for it. Returns the same.
    ///
    /// # Errors
    ///
    /// As there, but for tensors that are unreadable.
    pub fn check<L: Layer>(&self, layers: &[L]) -> Result<OtherTensors, TrainError> {
        self.fitting(layers).map(|(_, allowed)| allowed)
    }

    /// The tensors for a pipeline with these layers, and those that may be missing or extra.
    fn fitting<L: Layer>(
        &self,
        layers: &[L],
    ) -> Result<(Vec<burn_pack::Tensor>, OtherTensors), TrainError> {
        let mut places = places(layers);
        places.retain(|place| !self.skips(&place.name));
        let mut entries = self.entries()?;
        entries.retain(|name, _| !self.skips(name));
        let convention = (self.convention).or_else(|| convention(&entries, &places));
        let fit = |convention| Fit::new(&entries, &places, convention);
        // What the file says of itself counts less.
        let label = || convention_of(self.metadata.get(FORMAT)?);
        let Fit { tensors, mut other } = match convention.or_else(label) {
            Some(convention) => fit(convention),
            None => {
                // A file of another model fits neither way.
                let ways = [Convention::Burn, Convention::PyTorch].map(fit);
                let nearest = ways.into_iter().min_by_key(|fit| fit.other.missing.len());
                let is_known =
                    |fit: &Fit| fit.other != OtherTensors::default() || !differs(&entries, &places);
                let known = nearest.filter(is_known);
                known.ok_or_else(|| TrainError::format(&self.path, UNKNOWN))?
            }
        };
        let mut allowed = OtherTensors::default();
        let [may_lack, may_have] = &self.allowed;
        let split = |names: &mut Vec<String>, allows: &Names| {
            let (allowed, others) = names.drain(..).partition(|name| allows(name));
            *names = others;
            allowed
        };
        allowed.missing = split(&mut other.missing, may_lack);
        allowed.extra = split(&mut other.extra, may_have);
        if other != OtherTensors::default() {
            let (path, tensors) = (self.path.clone(), Box::new(other));
            return Err(TrainError::OtherModel { path, tensors });
        }
        Ok((tensors, allowed))
    }

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

    pub(super) fn skips(&self, name: &str) -> bool {
        self.skipped.iter().any(|skips| skips(name))
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

/// The tensors of a file, and its metadata.
fn contents(path: &Path) -> Result<(Vec<burn_pack::Tensor>, FileMetadata), TrainError> {
    if path.is_dir() {
        return hub::open(path);
    }
    match FileFormat::of(path)? {
        FileFormat::Safetensors => tensor_file::open(path),
        FileFormat::Burnpack => burnpack::open(path),
        FileFormat::PyTorch(container) => {
            let format = (FORMAT.to_owned(), PYTORCH.to_owned());
            Ok((
                pytorch::open(path, container)?,
                FileMetadata::from([format]),
            ))
        }
    }
}

/// The convention that the metadata of safetensors name.
fn convention_of(format: &str) -> Option<Convention> {
    match format {
        BURN => Some(Convention::Burn),
        PYTORCH => Some(Convention::PyTorch),
        _ => None,
    }
}

fn read(file: &SharedTensors, path: &Path, entry: &Entry) -> Result<TensorData, TrainError> {
    let data = file.reading(|| bridge::to_data(&entry.tensor))?;
    data.map_err(|error| TrainError::format(path, error))
}

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

/// The name in a pipeline of a name in a list of layers: `3.bias` becomes `layers.3.bias`.
fn of_pipeline(name: String) -> String {
    match name.split_once('.') {
        Some((index, _)) if index.parse::<usize>().is_ok() => format!("layers.{name}"),
        _ => name,
    }
}
