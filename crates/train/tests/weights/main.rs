//! Weights from files, loaded into pipelines.
#![allow(clippy::unwrap_used, missing_docs)]

mod bad;
mod dense;
mod memory;
mod seeds;
mod torch;

use std::{collections::BTreeMap, path::Path};

use burn::{
    module::Module,
    store::{BurnpackStore, KeyRemapper, ModuleSnapshot, bridge},
};
use dense::{Dense, pipeline};
use safetensors::{Dtype, tensor::TensorView};
use stovepipe_pipeline::Pipeline;
use stovepipe_train::{
    TrainError, Weights, save_model,
    weights::{Convention, OtherTensors, save_for_pytorch},
};
use tempfile::{TempDir, tempdir};

type Raw = (String, Dtype, Vec<usize>, Vec<u8>);

fn raw(name: &str, shape: &[usize], numbers: &[f32]) -> Raw {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    (name.to_owned(), Dtype::F32, shape.to_vec(), bytes.collect())
}

fn write(path: &Path, tensors: &[Raw], format: Option<&str>) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let metadata = format.map(|format| [("format".to_owned(), format.to_owned())].into());
    safetensors::serialize_to_file(views, metadata, path).unwrap();
}

/// All numbers of a pipeline, by name.
fn numbers(pipeline: &Pipeline<Dense>) -> BTreeMap<String, Vec<f32>> {
    let tensors = pipeline.valid().collect(None, None, true).into_iter();
    let numbers = tensors.map(|tensor| {
        let data = bridge::to_data(&tensor).unwrap();
        (tensor.name.clone(), data.try_into_vec_as().unwrap())
    });
    numbers.collect()
}

fn other_tensors(result: Result<(), TrainError>) -> OtherTensors {
    match result {
        Err(TrainError::OtherModel { tensors, .. }) => *tensors,
        other => panic!("{other:?}"),
    }
}

fn folder() -> (TempDir, std::path::PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights");
    (folder, path)
}

fn load(path: &Path, layers: Vec<Dense>) -> Result<Pipeline<Dense>, TrainError> {
    let mut pipeline = pipeline(layers, 1);
    Weights::open(path)?.load_into(&mut pipeline)?;
    Ok(pipeline)
}

/// PyTorch's tensors of a layer from two numbers to two, with norms.
fn pytorchs() -> Vec<Raw> {
    vec![
        raw("layers.0.linear.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
        raw("layers.0.linear.bias", &[2], &[5.0, 6.0]),
        raw("layers.0.norm.weight", &[2], &[7.0, 8.0]),
        raw("layers.0.norm.bias", &[2], &[9.0, 10.0]),
        raw("layers.0.batch.weight", &[2], &[11.0, 12.0]),
        raw("layers.0.batch.bias", &[2], &[13.0, 14.0]),
        raw("layers.0.batch.running_mean", &[2], &[15.0, 16.0]),
        raw("layers.0.batch.running_var", &[2], &[17.0, 18.0]),
    ]
}

#[test]
fn norms_show_whether_safetensors_are_pytorchs_or_burns() {
    let (_folder, path) = folder();
    let mut tensors = pytorchs();
    let count = 3_i64.to_le_bytes().to_vec();
    let name = "layers.0.batch.num_batches_tracked".to_owned();
    tensors.push((name, Dtype::I64, vec![], count));
    write(&path, &tensors, None);
    assert_eq!(Weights::open(&path).unwrap().names().count(), 9);
    let loaded = numbers(&load(&path, vec![Dense::normed(2, 2)]).unwrap());
    assert_eq!(loaded["layers.0.linear.weight"], [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(loaded["layers.0.norm.gamma"], [7.0, 8.0]);
    assert_eq!(loaded["layers.0.batch.beta"], [13.0, 14.0]);
    assert_eq!(loaded["layers.0.batch.running_var"], [17.0, 18.0]);

    // With Burn's names, the file is Burn's, and nothing is transposed.
    let burns: Vec<_> = (pytorchs().into_iter())
        .map(|(name, dtype, shape, bytes)| {
            let renamed = name.replace(".weight", ".gamma").replace(".bias", ".beta");
            let is_linear = name.contains("linear");
            let name = if is_linear { name } else { renamed };
            (name, dtype, shape, bytes)
        })
        .collect();
    write(&path, &burns, None);
    let loaded = numbers(&load(&path, vec![Dense::normed(2, 2)]).unwrap());
    assert_eq!(loaded["layers.0.linear.weight"], [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(loaded["layers.0.norm.beta"], [9.0, 10.0]);
}

#[test]
fn without_norms_shapes_or_metadata_show_the_convention() {
    let (_folder, path) = folder();
    let linear = |shape: &[usize], numbers: &[f32]| {
        let bias = raw("layers.0.linear.bias", &[2], &[0.0; 2]);
        [raw("layers.0.linear.weight", shape, numbers), bias]
    };
    let weight = |layer, convention: Option<Convention>| {
        let mut pipeline = pipeline(vec![layer], 1);
        let mut weights = Weights::open(&path).unwrap();
        if let Some(convention) = convention {
            weights = weights.of(convention);
        }
        weights.load_into(&mut pipeline)?;
        Ok(numbers(&pipeline)["layers.0.linear.weight"].clone())
    };
    let (burn, pytorch) = (Some(Convention::Burn), Some(Convention::PyTorch));

    let wide = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let turned = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
    for (shape, expected) in [([3, 2], wide), ([2, 3], turned)] {
        write(&path, &linear(&shape, &wide), None);
        assert_eq!(weight(Dense::new(3, 2), None).unwrap(), expected);
    }
    let tensors = other_tensors(weight(Dense::new(3, 2), burn).map(drop));
    let misshapen = "layers.0.linear.weight is [2, 3], not [3, 2]";
    assert_eq!(tensors.misshapen, [misshapen]);

    // A square shape shows nothing.
    let square = [1.0, 2.0, 3.0, 4.0];
    let turned = [1.0, 3.0, 2.0, 4.0];
    write(&path, &linear(&[2, 2], &square), None);
    let error = weight(Dense::new(2, 2), None).unwrap_err().to_string();
    assert!(error.contains("Burn's or PyTorch's"), "{error}");
    for (format, convention, expected) in [
        (None, burn, square),
        (None, pytorch, turned),
        (Some("pt"), None, turned),
        (Some("burn"), None, square),
    ] {
        write(&path, &linear(&[2, 2], &square), format);
        let found = weight(Dense::new(2, 2), convention).unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_a_pipeline_saves_says_that_it_is_burns() {
    let (_folder, path) = folder();
    let square = pipeline(vec![Dense::new(2, 2), Dense::new(2, 2)], 2);
    save_model(&square, path.clone()).unwrap();
    let loaded = load(&path, vec![Dense::new(2, 2), Dense::new(2, 2)]).unwrap();
    assert_eq!(numbers(&loaded), numbers(&square));
    // Equal models are equal files.
    let first = std::fs::read(&path).unwrap();
    save_model(&loaded, path.clone()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first);
}

/// Burn reads what a pipeline saves, and a pipeline what Burn saves, whose square weights are not turned.
#[test]
fn files_of_burn_go_both_ways() {
    #[derive(Module, Debug)]
    struct Plain {
        layers: Vec<Dense>,
    }
    let (_folder, path) = folder();
    let path = path.with_extension("bpk");
    let layers = || vec![Dense::normed(2, 2), Dense::new(2, 2), Dense::new(2, 3)];
    let original = pipeline(layers(), 2);
    save_model(&original, path.clone()).unwrap();
    let mut plain = Plain { layers: layers() };
    let mut store = BurnpackStore::from_file(&path);
    let loaded = plain.load_from(&mut store).unwrap();
    assert_eq!((loaded.missing.len(), loaded.unused.len()), (0, 0));
    let by_burn = pipeline(plain.layers.clone(), 1);
    assert_eq!(numbers(&by_burn), numbers(&original));

    let error = save_for_pytorch(&original, &path, |_| {}).unwrap_err();
    assert!(error.to_string().contains("another name"), "{error}");
    let first = std::fs::read(&path).unwrap();
    plain
        .save_into(&mut BurnpackStore::from_file(&path).overwrite(true))
        .unwrap();
    assert_ne!(std::fs::read(&path).unwrap(), first); // Burn's has its numbers of parameters
    let again = load(&path, layers()).unwrap();
    assert_eq!(numbers(&again), numbers(&original));
    // Equal models are equal files.
    save_model(&again, path.clone()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first);

    // A file that is cut off or removed since it was opened.
    let weights = Weights::open(&path).unwrap();
    std::fs::write(&path, &first[..first.len() - 1]).unwrap();
    let error = weights.load_into(&mut pipeline(layers(), 1)).unwrap_err();
    assert!(error.to_string().contains("has changed since"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = weights.load_into(&mut pipeline(layers(), 1)).unwrap_err();
    assert!(error.to_string().contains("weights.bpk"), "{error}");
}

#[test]
fn floating_point_numbers_become_the_models_and_others_are_refused() {
    let (_folder, path) = folder();
    let name = "layers.0.linear.weight";
    let write = |dtype, bytes| {
        let weight = (name.to_owned(), dtype, vec![2, 1], bytes);
        let bias = raw("layers.0.linear.bias", &[1], &[0.5]);
        write(&path, &[weight, bias], Some("burn"));
    };
    // 1.5 and -2.
    for (dtype, bytes) in [
        (Dtype::F16, vec![0x00, 0x3e, 0x00, 0xc0]),
        (Dtype::BF16, vec![0xc0, 0x3f, 0x00, 0xc0]),
        (Dtype::F64, [1.5_f64, -2.0].map(f64::to_le_bytes).concat()),
    ] {
        write(dtype, bytes);
        let loaded = load(&path, vec![Dense::new(2, 1)]).unwrap();
        let tensors = loaded.valid().collect(None, None, true);
        let mut tensors = tensors.iter();
        let weight = tensors.find(|tensor| tensor.name == name).unwrap();
        assert_eq!(weight.dtype, burn::tensor::DType::F32, "{dtype:?}");
        assert_eq!(numbers(&loaded)[name], [1.5, -2.0], "{dtype:?}");
    }

    write(Dtype::I64, [3_i64, 4].map(i64::to_le_bytes).concat());
    let tensors = other_tensors(load(&path, vec![Dense::new(2, 1)]).map(drop));
    assert_eq!(tensors.misshapen, [format!("{name} is I64, not F32")]);

    write(Dtype::F8_E4M3, vec![1, 2]);
    let error = Weights::open(&path).unwrap_err().to_string();
    assert!(error.contains(&format!("{name} is F8_E4M3")), "{error}");
}

#[test]
fn another_models_tensors_leave_a_pipeline_as_it_was() {
    let (_folder, path) = folder();
    let layers = [(3, 4), (4, 4), (4, 2)].map(|(from, to)| Dense::new(from, to));
    let three = pipeline(layers.to_vec(), 3);
    save_model(&three, path.clone()).unwrap();
    let mut other = pipeline(vec![Dense::new(3, 4), Dense::normed(4, 5)], 2);
    let before = numbers(&other);
    let tensors = other_tensors(
        Weights::open(&path)
            .unwrap()
            .load_into(&mut other)
            .map(drop),
    );
    let missing =
        "norm.gamma norm.beta batch.gamma batch.beta batch.running_mean batch.running_var";
    let missing = missing.split(' ').map(|name| format!("layers.1.{name}"));
    assert_eq!(tensors.missing, missing.collect::<Vec<_>>());
    let extra = ["layers.2.linear.bias", "layers.2.linear.weight"];
    assert_eq!(tensors.extra, extra);
    let weight = "layers.1.linear.weight is [4, 4], not [4, 5]";
    let misshapen = [weight, "layers.1.linear.bias is [4], not [5]"];
    assert_eq!(tensors.misshapen, misshapen);
    assert_eq!(numbers(&other), before);

    let weights = Weights::open(&path).unwrap();
    let weights = weights.without(|name| !name.starts_with("layers.0."));
    weights.load_into(&mut other).unwrap();
    let (loaded, saved) = (numbers(&other), numbers(&three));
    for (name, before) in before {
        let is_loaded = name.starts_with("layers.0.");
        let expected = if is_loaded { &saved[&name] } else { &before };
        assert_eq!(&loaded[&name], expected);
    }
}

#[test]
fn a_sequence_of_pytorchs_is_a_list_of_layers() {
    let (_folder, path) = folder();
    let tensors: [torch::Named<'_>; 4] = [
        ("0.linear.weight", &[1, 2], vec![1.0, 2.0]),
        ("0.linear.bias", &[1], vec![3.0]),
        ("1.linear.weight", &[2, 1], vec![4.0, 5.0]),
        ("1.linear.bias", &[2], vec![6.0, 7.0]),
    ];
    torch::save(&path, &tensors);
    let loaded = load(&path, vec![Dense::new(2, 1), Dense::new(1, 2)]).unwrap();
    assert_eq!(numbers(&loaded)["layers.1.linear.weight"], [4.0, 5.0]);

    // The same as programs wrap it.
    let names = tensors
        .each_ref()
        .map(|tensor| format!("module._orig_mod.{}", tensor.0));
    let wrapped = names.iter().zip(tensors);
    let wrapped = wrapped.map(|(name, (_, shape, numbers))| (name.as_str(), shape, numbers));
    torch::save(&path, &wrapped.collect::<Vec<_>>());
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.shape("1.linear.weight"), Some(&[2, 1][..]));
    let mut pipeline = pipeline(vec![Dense::new(2, 1), Dense::new(1, 2)], 2);
    weights.load_into(&mut pipeline).unwrap();
    assert_eq!(numbers(&pipeline), numbers(&loaded));
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let (_folder, path) = folder();
    let two = |a, b| [raw(a, &[1], &[1.0]), raw(b, &[1], &[2.0])];
    write(&path, &two("a.bias", "b.bias"), None);
    let keys = KeyRemapper::from_patterns(vec![("^[ab]", "0")]).unwrap();
    let renamed = Weights::open(&path).unwrap().renamed(&keys);
    write(&path, &two("0.bias", "layers.0.bias"), Some("burn"));
    let loaded = load(&path, vec![Dense::new(1, 1)]);
    for (error, expected) in [
        (
            renamed.err(),
            "a.bias and b.bias would both be layers.0.bias",
        ),
        (loaded.err(), "layers.0.bias twice"),
    ] {
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// As `torch.save` writes what `safetensors.torch.load_file` reads of a model that was saved here.
#[test]
fn a_file_of_pytorch_with_names_of_burn_has_its_layout_too() {
    let (_folder, path) = folder();
    let trained = pipeline(vec![Dense::normed(3, 2)], 1);
    let all = numbers(&trained);
    let shape = |name: &str| match name.ends_with("linear.weight") {
        true => &[3_usize, 2][..],
        false => &[2],
    };
    let named = all
        .iter()
        .map(|(name, own)| (name.as_str(), shape(name), own.clone()));
    torch::save(&path, &named.collect::<Vec<_>>());
    let loaded = load(&path, vec![Dense::normed(3, 2)]).unwrap();
    assert_eq!(numbers(&loaded), all);
}
