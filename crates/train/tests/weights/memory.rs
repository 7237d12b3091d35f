//! What saving and loading a model take besides the model, counted by the allocator.
//!
//! Each case is a process of its own: this program again, so that the most that was ever allocated is that case's.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use burn::module::Module;
use cap::Cap;
use stovepipe_train::{Weights, save_model};
use zip::CompressionMethod;

use crate::{
    dense::{Dense, pipeline},
    torch,
};

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

const CASE: &str = "STOVEPIPE_WEIGHTS_CASE";
const LAYERS: usize = 24;
const WIDTH: usize = 512;
/// Bytes of a layer's weight.
const LARGEST: usize = 4 * WIDTH * WIDTH;

fn layers() -> Vec<Dense> {
    (0..LAYERS).map(|_| Dense::new(WIDTH, WIDTH)).collect()
}

/// The most that was allocated besides the model, and the model, in bytes.
fn measure(case: &str, path: &Path) -> [usize; 2] {
    let empty = ALLOCATOR.allocated();
    let mut pipeline = pipeline(layers(), 3);
    match case {
        "save" => {
            pipeline = pipeline.materialize();
            save_model(&pipeline, path.with_extension("saved")).unwrap();
        }
        "bomb" => assert!(Weights::open(path).is_err()),
        _ => {
            let weights = Weights::open(path).unwrap();
            weights.load_into(&mut pipeline).unwrap();
        }
    }
    let resting = ALLOCATOR.allocated();
    let peak = ALLOCATOR.max_allocated();
    drop(pipeline);
    [peak - resting, resting - empty]
}

fn files(folder: &Path) -> [(&'static str, PathBuf); 3] {
    let safetensors = folder.join("model.safetensors");
    save_model(&pipeline(layers(), 2), safetensors.clone()).unwrap();
    let pytorch = folder.join("model.pt");
    let names_of = |layer| ["weight", "bias"].map(|name| format!("{layer}.linear.{name}"));
    let names: Vec<_> = (0..LAYERS).map(names_of).collect();
    let tensors = (names.iter()).flat_map(|[weight, bias]| -> [torch::Named<'_>; 2] {
        let square = vec![0.25; WIDTH * WIDTH];
        [
            (weight, &[WIDTH, WIDTH], square),
            (bias, &[WIDTH], vec![0.5; WIDTH]),
        ]
    });
    torch::save(&pytorch, &tensors.collect::<Vec<_>>());
    [
        ("save", safetensors.clone()),
        ("safetensors", safetensors),
        ("pt", pytorch),
    ]
}

/// Files that would be much larger in memory, and mebibytes that they may take there.
fn bombs(folder: &Path) -> [(PathBuf, f64); 2] {
    let nothing = |count| vec![("data.pkl".to_owned(), vec![b'N'; count])];
    let [compressed, stored] = ["compressed.pt", "stored.pt"].map(|name| folder.join(name));
    let large = nothing(100 << 20);
    torch::archive(&compressed, &large, CompressionMethod::Deflated);
    torch::archive(&stored, &nothing(8 << 20), CompressionMethod::Stored);
    [(compressed, 1.0), (stored, 2048.0)]
}

#[test]
fn a_few_tensors_are_in_memory_at_a_time() {
    if let Ok(case) = env::var(CASE) {
        let (case, path) = case.split_once(' ').unwrap();
        println!("{:?}", measure(case, Path::new(path)));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (case, path) in files(folder.path()) {
        let [besides, model] = in_a_process(case, &path).map(|bytes| bytes / LARGEST as f64);
        println!("{case:<12} {besides:.2} of the largest tensor besides a model of {model:.2}");
        let expected = LAYERS as f64..LAYERS as f64 + 2.0;
        assert!(expected.contains(&model), "{case}: {model}");
        // A tensor as it is in the file, and on its device.
        let most = if case == "safetensors" { 2.2 } else { 4.0 };
        assert!(besides < most, "{case}: {besides}");
    }
    for (path, most) in bombs(folder.path()) {
        let [besides, _] = in_a_process("bomb", &path).map(|bytes| bytes / f64::from(1 << 20));
        println!("{} {besides:.1} MiB", path.display());
        assert!(besides < most, "{}: {besides} MiB", path.display());
    }
}

fn in_a_process(case: &str, path: &Path) -> [f64; 2] {
    let arguments = "memory::a_few_tensors_are_in_memory_at_a_time --exact --nocapture";
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(arguments.split(' '));
    child.env(CASE, format!("{case} {}", path.display()));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('['));
    let numbers = line.unwrap_or_else(|| panic!("{case}: {text}{output:?}"));
    let numbers = numbers.trim_matches(['[', ']']).split(", ");
    let numbers: Vec<f64> = numbers.map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}
