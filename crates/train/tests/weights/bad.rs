//! Files that are damaged, or made to do harm.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use proptest::prelude::*;
use stovepipe_train::{TrainError, Weights, save_model};
use tempfile::TempDir;
use zip::CompressionMethod;

use super::{
    dense::{Dense, pipeline},
    folder, load, torch,
};

fn layers() -> Vec<Dense> {
    vec![Dense::new(3, 2), Dense::normed(2, 2)]
}

/// What is wrong with a file.
fn error(path: &Path) -> String {
    let error = load(path, layers()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    text
}

/// That a file is refused when it is opened.
fn refused(path: &Path) -> String {
    match Weights::open(path) {
        Err(error @ TrainError::Format { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn pickle(path: &Path, pickle: &[u8]) {
    let entries = [
        ("data.pkl".to_owned(), pickle.to_vec()),
        ("version".to_owned(), b"3\n".to_vec()),
    ];
    torch::archive(path, &entries, CompressionMethod::Stored);
}

/// The three kinds of file, whole.
static FILES: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    let (_folder, path) = folder();
    let of_burn = path.with_extension("bpk");
    save_model(&pipeline(layers(), 1), of_burn.clone()).unwrap();
    let burnpack = fs::read(&of_burn).unwrap();
    save_model(&pipeline(layers(), 1), path.clone()).unwrap();
    let safetensors = fs::read(&path).unwrap();
    let norm = |name: &'static str| (name, &[2_usize][..], vec![0.5; 2]);
    let tensors: Vec<torch::Named<'_>> = vec![
        ("0.linear.weight", &[2, 3], vec![1.0; 6]),
        ("0.linear.bias", &[2], vec![1.0; 2]),
        ("1.linear.weight", &[2, 2], vec![1.0; 4]),
        norm("1.linear.bias"),
        norm("1.norm.weight"),
        norm("1.norm.bias"),
        norm("1.batch.weight"),
        norm("1.batch.bias"),
        norm("1.batch.running_mean"),
        norm("1.batch.running_var"),
    ];
    torch::save(&path, &tensors);
    load(&path, layers()).unwrap();
    [safetensors, fs::read(&path).unwrap(), burnpack]
});

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let (_folder, path) = folder();
    for file in FILES.iter() {
        let ends = file.len() - 30..file.len();
        for length in (0..file.len()).step_by(5).chain(ends) {
            fs::write(&path, &file[..length]).unwrap();
            error(&path);
        }
    }
}

#[test]
fn a_number_that_has_changed_in_a_pytorch_file_is_named() {
    let (_folder, path) = folder();
    let mut file = FILES[1].clone();
    let ones = [1.0_f32.to_le_bytes(); 6].concat();
    let place = file.windows(ones.len()).position(|window| window == ones);
    file[place.unwrap()] ^= 1;
    fs::write(&path, file).unwrap();
    let error = error(&path);
    for part in ["layers.0.linear.weight", "checksum"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn other_files_are_refused() {
    let (folder, path) = folder();
    let pickle_and_json = [&b"\x80\x02}."[..], b"{\"a\": 1}"];
    let others = [&b""[..], b"PK", &[0; 100], b"GIF89a, not a model"];
    for bytes in others.into_iter().chain(pickle_and_json) {
        fs::write(&path, bytes).unwrap();
        refused(&path);
    }
    let none_here = Weights::open(folder.path()).unwrap_err();
    assert!(
        matches!(none_here, TrainError::Format { .. }),
        "{none_here}"
    );
    let none = folder.path().join("none.pt");
    assert!(matches!(Weights::open(none), Err(TrainError::File { .. })));
    // An archive of something else, and a dictionary without tensors.
    let text = [("a.txt".to_owned(), vec![1])];
    torch::archive(&path, &text, CompressionMethod::Stored);
    assert!(refused(&path).contains("data.pkl"));
    pickle(&path, b"\x80\x02}X\x05\0\0\0epochK\x03s.");
    assert!(refused(&path).contains("has no tensors"));
}

#[test]
fn code_in_a_pickle_is_not_run() {
    let (folder, path) = folder();
    let proof = folder.path().join("proof");
    let call = format!("touch {}", proof.display());
    for (module, function) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("subprocess", "getoutput"),
    ] {
        let mut bytes = b"\x80\x02}X\x01\0\0\0a".to_vec();
        bytes.extend(format!("c{module}\n{function}\n").as_bytes());
        bytes.push(b'X');
        bytes.extend((call.len() as u32).to_le_bytes());
        bytes.extend(call.as_bytes());
        bytes.extend(b"\x85Rs.");
        pickle(&path, &bytes);
        refused(&path);
        assert!(!proof.exists(), "{module}.{function}");
    }
}

#[test]
fn bombs_do_not_go_off() {
    let (_folder, path) = folder();
    // Nothing, a hundred million times: a hundred kilobytes in the file.
    let zeros = vec![b'N'; 100_000_000];
    let entries = [("data.pkl".to_owned(), zeros)];
    torch::archive(&path, &entries, CompressionMethod::Deflated);
    assert!(fs::metadata(&path).unwrap().len() < 1_000_000);
    assert!(refused(&path).contains("data.pkl is compressed"));
    // Not compressed, it is a file of that size.
    let entries = [("data.pkl".to_owned(), vec![b'N'; 9 << 20])];
    torch::archive(&path, &entries, CompressionMethod::Stored);
    assert!(refused(&path).contains("more than 8388608"));

    // A list of ten lists of ten lists …, and lists within lists.
    let mut laughs = b"\x80\x02]q\0".to_vec();
    for level in 0..30_u8 {
        laughs.extend(b"](");
        laughs.extend([b'h', level].repeat(10));
        laughs.extend([b'e', b'q', level + 1]);
    }
    laughs.push(b'.');
    pickle(&path, &laughs);
    refused(&path);
    let mut nested = b"\x80\x02".to_vec();
    nested.extend(vec![b']'; 1_000_000]);
    nested.extend(vec![b'a'; 999_999]);
    nested.push(b'.');
    pickle(&path, &nested);
    refused(&path);

    // A header that says it is longer than any.
    let mut header = u64::MAX.to_le_bytes().to_vec();
    header.extend(b"{\"a\":1}");
    fs::write(&path, header).unwrap();
    refused(&path);
    // A tensor that says it is larger than any.
    let text = br#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#;
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    fs::write(&path, header).unwrap();
    refused(&path);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Whatever the bytes, there is a result, and an error names the file.
    #[test]
    fn changed_bytes_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        kind in 0_usize..3,
    ) {
        let (_folder, path) = folder();
        let mut file = FILES[kind].clone();
        for (place, byte) in changes {
            let place = place.index(file.len());
            file[place] = byte;
        }
        fs::write(&path, file).unwrap();
        if let Err(error) = load(&path, layers()) {
            prop_assert!(error.to_string().contains(&path.display().to_string()));
        }
    }
}

/// What a name of a shard or of a tensor may be.
fn name() -> impl Strategy<Value = String> {
    let names = [
        "model.safetensors",
        "layers.0.linear.weight",
        "../model.safetensors",
        "/etc/passwd",
        ".",
        "",
        "a",
    ];
    prop_oneof![
        prop::sample::select(names.to_vec()).prop_map(str::to_owned),
        prop::collection::vec(any::<char>(), 0..6).prop_map(String::from_iter),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    /// Whatever an index says, there is a result, and an error names the folder.
    #[test]
    fn indexes_do_no_harm(
        map in prop::collection::btree_map(name(), name(), 0..4),
        cut in any::<prop::sample::Index>(),
        is_cut in prop::bool::weighted(0.1),
    ) {
        let (folder, path) = &*HUB;
        let text = serde_json::json!({ "weight_map": map }).to_string();
        let cut = if is_cut { cut.index(text.len()) } else { text.len() };
        let index = path.join("model.safetensors.index.json");
        fs::write(&index, &text.as_bytes()[..cut]).unwrap();
        match Weights::open(path) {
            Ok(_) => prop_assert!(map.values().all(|shard| shard == "model.safetensors")),
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.contains(&folder.path().display().to_string()), "{}", text);
            }
        }
    }
}

/// A folder with one shard.
static HUB: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let (folder, path) = folder();
    fs::create_dir(&path).unwrap();
    save_model(&pipeline(layers(), 1), path.join("model.safetensors")).unwrap();
    (folder, path)
});
