//! Models in files for PyTorch.

use std::path::Path;

use burn::{
    module::Module,
    optim::StateSink,
    store::{BurnToPyTorchAdapter, ModuleSnapshot, bridge, burn_pack::Scalar},
    tensor::{Shape, TensorData},
};
use stovepipe_pipeline::{Layer, Pipeline};

use super::{
    fit::COUNT,
    format::{FORMAT, PYTORCH},
    tensor_file::{self, fetched},
    together::write_together,
};
use crate::{error::TrainError, processes::Processes};

/// A tensor's name and shape.
pub type NameAndShape = (String, Vec<usize>);

/// Saves a pipeline's parameters and statistics for PyTorch, as safetensors. Linear weights are
/// transposed, norms have `weight` and `bias`, and batch norms `num_batches_tracked`, as 0.
///
/// `rename` changes names and shapes to those of another program's model: see
/// `AmoebaNetDConfig::to_torch` and `VitConfig::to_timm`. Otherwise the names are
/// `layers.3.….weight`. The whole model must fit into this machine's memory.
///
/// ```
/// # use burn::tensor::Device;
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Weights, example::Dense, weights::save_for_pytorch};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("pytorch.safetensors");
/// let pipeline = Pipeline::builder(vec![Dense::new(4, 3)]).devices([Device::flex()]).build()?;
/// save_for_pytorch(&pipeline, &path, |tensors| {
///     tensors.iter_mut().for_each(|(name, _)| *name = name.replace("layers.0.linear", "fc"));
/// })?;
/// assert_eq!(Weights::open(&path)?.shape("fc.weight"), Some(&[3, 4][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the file cannot be written, a device does not return its tensors, or a new shape has another
/// number of elements.
pub fn save_for_pytorch<L: Layer>(
    pipeline: &Pipeline<L>,
    path: &Path,
    rename: impl FnOnce(&mut [NameAndShape]),
) -> Result<(), TrainError> {
    let adapter = Box::new(BurnToPyTorchAdapter);
    let tensors = pipeline.valid().collect(None, Some(adapter), true);
    let own = tensors
        .iter()
        .map(|own| (own.name.clone(), own.shape.to_vec()));
    let mut named: Vec<NameAndShape> = own.collect();
    rename(&mut named);
    fetched(path, || {
        let mut content = StateSink::default();
        for (tensor, (name, shape)) in tensors.into_iter().zip(named) {
            let data =
                bridge::into_data(tensor).map_err(|error| TrainError::format(path, error))?;
            let (bytes, _, dtype) = data.into_parts();
            let data = TensorData::try_from_bytes(bytes, Shape::from(shape), dtype)
                .map_err(|error| TrainError::format(path, format!("{name}: {error}")))?;
            if let Some(module) = name.strip_suffix(".running_var") {
                content
                    .scalars
                    .push((format!("{module}{COUNT}"), Scalar::Int(0)));
            }
            content.tensors.push((name, data));
        }
        tensor_file::write(
            path,
            tensor_file::of_state(content),
            Some((FORMAT, PYTORCH)),
        )
    })
}

/// Saves some of a pipeline's tensors as safetensors, in f32, by the names that `rename` gives them, such as
/// those of an adapter.
///
/// ```
/// # use burn::tensor::Device;
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Weights, example::Dense, weights::save_some};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("biases.safetensors");
/// let pipeline = Pipeline::builder(vec![Dense::new(4, 3)]).devices([Device::flex()]).build()?;
/// save_some(&pipeline, &path, |name| Some(format!("{}.b", name.strip_suffix(".bias")?)))?;
/// assert!(Weights::open(&path)?.names().eq(["layers.0.linear.b"]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the file cannot be written, or a device does not return its tensors.
pub fn save_some<L: Layer>(
    pipeline: &Pipeline<L>,
    path: &Path,
    rename: impl Fn(&str) -> Option<String>,
) -> Result<(), TrainError> {
    pipeline.share_parameters()?;
    let tensors = || {
        let all = pipeline.valid().collect(None, None, true).into_iter();
        let mut some: Vec<_> = all
            .filter_map(|mut tensor| {
                tensor.name = rename(&tensor.name)?;
                Some(tensor)
            })
            .collect();
        some.sort_by(|a, b| a.name.cmp(&b.name));
        some
    };
    write_together(
        &Processes::of(pipeline),
        path,
        tensors,
        Some((FORMAT, PYTORCH)),
    )
}
