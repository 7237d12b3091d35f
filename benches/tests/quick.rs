//! Each benchmark runs from end to end on the smallest sizes and saves results that can be read. Their
//! values are not tested.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

const MODELS: [&str; 3] = ["amoebanet-32", "amoebanet-224", "transformer"];

fn run(bench: &str, folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(match bench {
        "breakdown" | "by_layer" | "forecast" | "long_run" | "memory" => {
            env!("CARGO_BIN_EXE_bench-memory")
        }
        _ => env!("CARGO_BIN_EXE_bench"),
    });
    command.arg(bench.replace('_', "-"));
    command.args(["--quick", "--out"]).arg(folder).args(flags);
    if ["checksums", "kills", "long_run", "saving"].contains(&bench) {
        command.arg("--disk").arg(folder);
    }
    command.output().unwrap()
}

/// Runs a program and reads what it saved.
fn results(bench: &str) -> Value {
    results_in(&folder(bench), bench, &[])
}

/// Runs a program with flags and reads what it saved in a folder.
fn results_in(folder: &Path, bench: &str, flags: &[&str]) -> Value {
    let output = run(bench, folder, flags);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bench}: {errors}");
    let text = fs::read_to_string(folder.join(format!("{bench}.json"))).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(results["bench"], bench);
    for key in ["date", "command", "machine", "settings", "notes"] {
        assert!(!results[key].is_null(), "{bench} has no {key}");
    }
    results
}

/// The errors of a program that must fail.
fn failure(bench: &str, name: &str, flags: &[&str]) -> String {
    let output = run(bench, &folder(name), flags);
    assert!(!output.status.success(), "{bench} {flags:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn folder(bench: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(bench)
}

/// The rows of the table whose title starts with this.
fn rows<'a>(results: &'a Value, title: &str) -> &'a Vec<Value> {
    rows_of(results, |other| other.starts_with(title))
}

fn rows_of(results: &Value, fits: impl Fn(&str) -> bool) -> &Vec<Value> {
    let mut tables = results["tables"].as_array().unwrap().iter();
    let table = tables.find(|table| fits(table["title"].as_str().unwrap()));
    table.unwrap()["rows"].as_array().unwrap()
}

/// Whether `python3` can do this.
fn python_has(what: &str) -> bool {
    let output = Command::new("python3").args(["-c", what]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Reports that a test did not run its program, past the capture of a test's output.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn all_positive(rows: &[Value], key: &str) -> bool {
    rows.iter().all(|row| is_positive(row, key))
}

fn is_positive(row: &Value, key: &str) -> bool {
    row[key].as_f64().is_some_and(|value| value > 0.0)
}

#[test]
fn saving() {
    let results = results("saving");
    let rows = rows(&results, "checkpoints");
    assert_eq!(rows.len(), 2);
    for key in [
        "parameters",
        "mebibytes",
        "without_ms",
        "step_ms",
        "saving_ratio",
    ] {
        assert!(all_positive(rows, key), "{key}");
    }
}

/// Slower stores make longer steps.
#[test]
fn offload() {
    let results = results("offload");
    for stages in ["stages: 1", "stages: 2"] {
        let rows = rows(&results, stages);
        assert_eq!(rows.len(), 4);
        for key in ["step_ms", "predicted_ms"] {
            assert!(all_positive(rows, key), "{key}");
        }
        let predicted = rows[1..].iter().map(|row| row["predicted_ms"].as_f64());
        assert!(predicted.is_sorted());
    }
}

#[test]
fn dropout() {
    let results = results("dropout");
    let rows = rows(&results, "dropout");
    assert_eq!(rows.len(), 1);
    for key in ["both_ratio", "hidden_ratio", "attention_ratio"] {
        assert!(all_positive(rows, key), "{key}");
    }
}

#[test]
fn checksums() {
    let results = results("checksums");
    let rows = rows(&results, "checksums");
    assert_eq!(rows.len(), 2);
    for key in ["without_ms", "steps_ratio", "passes_ratio"] {
        assert!(all_positive(rows, key), "{key}");
    }
}

/// Ten legs, after each of which the training resumes; nothing is left open.
#[test]
fn long_run() {
    let results = results("long_run");
    let legs = rows(&results, "legs");
    assert_eq!(legs.len(), 11);
    for key in [
        "steps",
        "allocated",
        "resident",
        "files",
        "threads",
        "step_ms",
    ] {
        assert!(all_positive(legs, key), "{key}");
    }
    assert_eq!(legs[10]["steps"], 396);
}

/// Four kills, and a run to its end.
#[test]
fn kills() {
    let errors = failure("kills", "missing", &["--program", "no-such-program"]);
    let advice = "`cargo build --release -p stovepipe-cli`";
    assert!(errors.contains(advice), "{errors}");
    let program = Path::new(env!("CARGO_BIN_EXE_bench")).with_file_name("stovepipe");
    if !program.is_file() {
        return skipped("the program `stovepipe` is not built");
    }
    let flags = ["--program", program.to_str().unwrap()];
    let results = results_in(&folder("kills"), "kills", &flags);
    let phases = rows(&results, "kills by phase");
    let kills = phases.iter().map(|row| row["kills"].as_u64().unwrap());
    assert_eq!((phases.len(), kills.sum::<u64>()), (5, 4));
    assert!(all_positive(
        rows(&results, "what came of them"),
        "complete"
    ));
}

#[test]
fn limit() {
    let results = results("limit");
    for model in MODELS {
        let rows = rows(&results, &format!("{model}: samples/s"));
        // With one micro-batch all modes are equal. With two, one stage has GPipe's three and a
        // 1F1B without anything to recompute, and two stages have all six.
        let of = |stages, m| {
            let is_own = |row: &&Value| row["stages"] == stages && row["micro_batches"] == m;
            rows.iter().filter(is_own).count()
        };
        assert_eq!([of(1, 1), of(1, 2), of(2, 1), of(2, 2)], [1, 4, 1, 6]);
        assert!(all_positive(rows, "of_limit"));
        assert!(all_positive(rows, "of_limit_of_cut"));
    }
}

#[test]
fn zero_bubble() {
    let results = results("zero_bubble");
    let rows = rows(&results, "amoebanet-32, schedules: m = 2");
    assert_eq!(rows.len(), 6);
    for key in ["step_ms", "promise_ms", "over_1f1b", "promised_over_1f1b"] {
        assert!(all_positive(rows, key), "{key}");
    }
    let kept = rows.iter().map(|row| row["kept"].as_str().unwrap());
    assert!(kept.take(3).eq(["0 0", "1 1", "1 2"]));
}

#[test]
fn windows() {
    let results = results("windows");
    for model in MODELS {
        let rows = rows(&results, &format!("{model}: windows"));
        assert_eq!(rows.len(), 3);
        for key in ["mini_batch_ms", "over_1f1b", "promised", "of_promised"] {
            assert!(all_positive(rows, key), "{key}");
        }
    }
}

#[test]
fn forecast() {
    let flags = ["--model", "transformer"];
    let results = results_in(&folder("forecast"), "forecast", &flags);
    let rows = rows(&results, "transformer: m = 2");
    assert_eq!(rows.len(), 12);
    for key in ["held_mib", "counted_mib", "forecast"] {
        assert!(all_positive(rows, key), "{key}");
    }
}

#[test]
fn predicted() {
    let results = results("predicted");
    let rows = rows(&results, "amoebanet-32: m = 2");
    assert_eq!(rows.len(), 6);
    for key in ["step_ms", "predicted", "alone", "replayed"] {
        assert!(all_positive(rows, key), "{key}");
    }
}

#[test]
fn plain() {
    let results = results("plain");
    let rows = rows(&results, "engine");
    for model in MODELS {
        assert_eq!(rows.iter().filter(|row| row["model"] == model).count(), 2);
    }
    assert!(all_positive(rows, "ratio"));
}

#[test]
fn breakdown() {
    let results = results("breakdown");
    for (model, layers) in MODELS.into_iter().zip([9, 9, 4]) {
        let table = |name: &str| rows(&results, &format!("{model}, {name}"));
        assert_eq!(table("layers").len(), layers + 1);
        assert_eq!(table("step").len(), 1 + 2 * 6);
        assert_eq!(table("boundary").len(), 1);
        assert_eq!(table("memory").len(), 1 + 1 + 6);
        assert!(table("fixed").iter().all(|row| row["least_ms"].is_f64()));
        assert!(all_positive(table("memory"), "peak_mib"));
    }
}

#[test]
fn memory() {
    let results = results("memory");
    let largest = rows(&results, "largest");
    assert_eq!(largest.len(), 3);
    for row in largest {
        assert!(is_positive(row, "trained_filters"), "{row}");
        assert!(is_positive(row, "peak_mib"), "{row}");
    }
    // Counted memory agrees with the shapes.
    for row in rows(&results, "items") {
        let item = row["item"].as_str().unwrap();
        if ["optimizer", "gradients"].contains(&item) {
            let ratio = row["ratio"].as_f64().unwrap();
            // A step of one micro-batch needs most before it has gradients.
            let is_before = item == "gradients" && row["way"] == "naive-1";
            let near = if is_before { 0.0..0.1 } else { 0.8..1.1 };
            assert!(near.contains(&ratio), "{row}");
        }
    }
    assert_eq!(rows(&results, "predicted: the papers'").len(), 5);
    let folder = folder("memory");
    let markdown = fs::read_to_string(folder.join("memory.md")).unwrap();
    let row = "| naive-1 | (18, 208) | 81505540 |";
    assert!(markdown.contains(row), "{markdown}");
    let picture = fs::read_to_string(folder.join("memory.svg")).unwrap();
    assert!(picture.starts_with("<svg"));
}

#[test]
fn pytorch() {
    let errors = failure("pytorch", "missing", &["--python", "no-such-python"]);
    let advice = "--python target/pytorch/bin/python";
    assert!(errors.contains(advice), "{errors}");
    if !python_has("import torch") {
        return skipped("python3 has no PyTorch");
    }
    let results = results("pytorch");
    let rows = rows(&results, "training step");
    for model in MODELS {
        assert_eq!(rows.iter().filter(|row| row["model"] == model).count(), 4);
    }
    assert!(all_positive(rows, "time_over_pytorch"));
}

#[cfg(not(feature = "mpi"))]
#[test]
fn processes_need_mpi() {
    let errors = failure("processes", "processes", &[]);
    assert!(errors.contains("--features mpi"), "{errors}");
}

#[test]
fn replicas() {
    let results = results("replicas");
    for model in ["amoebanet-32", "transformer"] {
        let next_to_copies = rows(&results, &format!("{model}: 2 replicas"));
        assert!(all_positive(next_to_copies, "of_copies"));
        let steps = rows(&results, &format!("{model}, training steps"));
        assert_eq!(steps.len(), 2);
        assert!(all_positive(steps, "samples_per_second"));
        assert!(steps.iter().all(|row| row.get("over_pytorch").is_none()));
    }
}

#[test]
fn replicas_next_to_pytorch() {
    if !python_has("import torch.distributed.pipelining") {
        return skipped("python3 has no PyTorch");
    }
    let flags = ["--only", "steps", "--python", "python3"];
    let results = results_in(&folder("replicas-pytorch"), "replicas", &flags);
    for model in ["amoebanet-32", "transformer"] {
        let steps = rows(&results, &format!("{model}, training steps"));
        assert!(all_positive(steps, "over_pytorch"));
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn replicas_in_processes_need_mpi() {
    let flags = ["--only", "steps", "--processes", "--model", "transformer"];
    let errors = failure("replicas", "replicas-processes", &flags);
    assert!(errors.contains("--features mpi"), "{errors}");
}

/// What is hidden can be below 0 where there is almost nothing to hide it behind.
#[test]
fn overlap() {
    let results = results("overlap");
    let rows = rows(&results, "4 Transformer layers");
    let cases = rows
        .iter()
        .map(|row| (row["stages"].as_u64(), row["micro_batches"].as_u64()));
    let expected = [(1, 2), (1, 8), (2, 2), (2, 8)].map(|(k, m)| (Some(k), Some(m)));
    assert!(cases.eq(expected));
    for key in ["step_ms", "free_ms", "reduction_ms", "simulated_ms"] {
        assert!(all_positive(rows, key), "{key}");
    }
    // A stage of two has half of the gradients.
    let reduction = |row: usize| rows[row]["reduction_ms"].as_f64().unwrap();
    assert!((reduction(0) / reduction(2) - 2.0).abs() < 1e-3);
    assert!(rows.iter().all(|row| row["simulated_hidden"].is_f64()));
}

#[test]
fn peers_without_pytorch() {
    let folder = folder("peers-alone");
    let results = results_in(&folder, "peers", &["--alone"]);
    for model in MODELS {
        for (m, ways) in [(2, 8), (4, 4)] {
            let rows = peers_rows(&results, model, m);
            assert_eq!(rows.len(), ways, "{model}, m = {m}");
            assert!(all_positive(rows, "samples_per_second"));
            assert!(rows.iter().all(|row| row["over_pytorch"].is_null()));
        }
        assert!(all_positive(peers_rows(&results, model, 2), "over_one"));
        let of_products = |row: &&Value| is_positive(row, "of_products");
        let found = peers_rows(&results, model, 2).iter().filter(of_products);
        assert_eq!(found.count(), if model == "transformer" { 7 } else { 0 });
    }
    let loaded = rows(&results, "1F1B while another process");
    assert_eq!(loaded.len(), MODELS.len());
    assert!(all_positive(loaded, "kept"));
}

#[test]
fn peers_says_what_is_missing() {
    let pythons = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pythons");
    for (python, words) in [
        ("none-there", ["cannot be run", "--python target/pytorch"]),
        ("without-pytorch", ["No module named torch", "pip install"]),
        ("other-model", ["13120 parameters here", ", 1 in PyTorch"]),
        // Seen before its second stage is ready, or at the first step.
        ("ends", ["PyTorch's stage", "has ended"]),
    ] {
        let path = pythons.join(python);
        let flags = ["--model", "transformer", "--python", path.to_str().unwrap()];
        let errors = failure("peers", &format!("peers-{python}"), &flags);
        assert!(words.iter().all(|word| errors.contains(word)), "{errors}");
    }
}

#[test]
fn peers() {
    if !python_has("import torch.distributed.pipelining") {
        return skipped("python3 has no PyTorch");
    }
    let results = results("peers");
    for model in MODELS {
        let race = peers_rows(&results, model, 2);
        assert!(all_positive(race, "over_pytorch"));
        let losses = rows(&results, &format!("{model}: losses"));
        assert_eq!(losses.len(), 3);
    }
    // The program itself fails if losses differ.
    assert_eq!(rows(&results, "losses next to").len(), 5 * MODELS.len());
    let picture = fs::read_to_string(folder("peers").join("peers.svg")).unwrap();
    assert_eq!(picture.matches("<polyline").count(), 5 * MODELS.len());
}

/// The rows of a race.
fn peers_rows<'a>(results: &'a Value, model: &str, m: usize) -> &'a Vec<Value> {
    let (start, m) = (format!("{model}: "), format!("m = {m},"));
    rows_of(results, |title| {
        title.starts_with(&start) && title.contains(&m)
    })
}

#[test]
fn finetune_without_transformers() {
    let results = results_in(&folder("finetune"), "finetune", &["--alone"]);
    let rows = rows(&results, "fine-tuning a Llama");
    assert_eq!(rows.len(), 2);
    for key in ["tokens_per_second", "peak_mib", "loss"] {
        assert!(all_positive(rows, key), "{key}");
    }
}

/// The CPU in place of a GPU.
#[test]
fn gpu() {
    let folder = folder("gpu");
    let results = results_in(&folder, "gpu", &["--alone", "--device", "cpu"]);
    let compared = rows(&results, "next to the CPU");
    assert_eq!(compared.len(), 2 * 3 * 2);
    for row in compared.iter().filter(|row| row["precision"] == "f32") {
        let off = row["gradient"].as_f64().unwrap();
        assert!(off <= 1e-4, "{row}");
    }
    let raced = rows(&results, "training steps on one GPU");
    assert_eq!(raced.len(), 2 * 2 * 2);
    assert!(all_positive(raced, "samples_per_second"));
    let markdown = fs::read_to_string(folder.join("gpu.md")).unwrap();
    assert!(markdown.contains("| ours, one stage |"), "{markdown}");
}

/// A missing device is an error before anything is measured.
#[test]
fn gpu_without_a_gpu() {
    let errors = failure("gpu", "missing", &["--device", "cuda:77"]);
    assert!(errors.contains("device `cuda:77`"), "{errors}");
}

#[test]
fn loading() {
    let errors = failure("loading", "missing", &["--python", "no-such-python"]);
    assert!(errors.contains("--python PATH"), "{errors}");
    let imports = "import torchvision, skimage, sklearn";
    if !python_has(imports) {
        return skipped("python3 has no torchvision, scikit-image and scikit-learn");
    }
    let results = results("loading");
    let rows = rows(&results, "loading");
    assert_eq!(rows.len(), 6);
    assert!(all_positive(rows, "images_per_second"));
}
