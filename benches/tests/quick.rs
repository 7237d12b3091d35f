//! Each benchmark runs from end to end on the smallest sizes and leaves figures that can be read. What
//! the figures are, no test says.

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
        "breakdown" | "memory" => env!("CARGO_BIN_EXE_bench-memory"),
        _ => env!("CARGO_BIN_EXE_bench"),
    });
    command.arg(bench.replace('_', "-"));
    command.args(["--quick", "--out"]).arg(folder).args(flags);
    if bench == "saving" {
        command.arg("--disk").arg(folder);
    }
    command.output().unwrap()
}

/// Runs a program and reads what it saved.
fn figures(bench: &str) -> Value {
    let folder = folder(bench);
    let output = run(bench, &folder, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bench}: {errors}");
    read(&folder, bench)
}

/// What a program saved in a folder.
fn read(folder: &Path, bench: &str) -> Value {
    let text = fs::read_to_string(folder.join(format!("{bench}.json"))).unwrap();
    let figures: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(figures["bench"], bench);
    for key in ["date", "command", "machine", "settings", "notes"] {
        assert!(!figures[key].is_null(), "{bench} has no {key}");
    }
    figures
}

fn folder(bench: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(bench)
}

/// The rows of a table by the beginning of its title.
fn rows<'a>(figures: &'a Value, title: &str) -> &'a Vec<Value> {
    let tables = figures["tables"].as_array().unwrap();
    let fits = |table: &&Value| table["title"].as_str().unwrap().starts_with(title);
    tables.iter().find(fits).unwrap()["rows"]
        .as_array()
        .unwrap()
}

/// Whether `python3` can do this.
fn python_has(what: &str) -> bool {
    let output = Command::new("python3").args(["-c", what]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Says that a test did not run its program. A test's own output is not shown when it passes, so this goes round it.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn is_positive(row: &Value, key: &str) -> bool {
    row[key].as_f64().is_some_and(|value| value > 0.0)
}

#[test]
fn saving() {
    let figures = figures("saving");
    let rows = rows(&figures, "checkpoints");
    assert_eq!(rows.len(), 2);
    // What checkpoints cost is a difference, and anything where there are only two.
    for key in ["parameters", "mebibytes", "step_ms"] {
        assert!(rows.iter().all(|row| is_positive(row, key)), "{key}");
    }
}

#[test]
fn limit() {
    let figures = figures("limit");
    for model in MODELS {
        let rows = rows(&figures, &format!("{model}: samples/s"));
        // With one micro-batch all modes are one. With two, one stage has GPipe's three and a
        // 1F1B in which nothing is left to recompute, and two stages have all six.
        let of = |stages, m| {
            let own = rows
                .iter()
                .filter(|row| row["stages"] == stages && row["micro_batches"] == m);
            own.count()
        };
        assert_eq!([of(1, 1), of(1, 2), of(2, 1), of(2, 2)], [1, 4, 1, 6]);
        assert!(rows.iter().all(|row| is_positive(row, "of_limit")));
        assert!(rows.iter().all(|row| is_positive(row, "of_limit_of_cut")));
    }
}

#[test]
fn zero_bubble() {
    let figures = figures("zero_bubble");
    let rows = rows(&figures, "amoebanet-32, schedules: m = 2");
    assert_eq!(rows.len(), 6);
    for key in ["step_ms", "promise_ms", "over_1f1b", "promised_over_1f1b"] {
        assert!(rows.iter().all(|row| is_positive(row, key)), "{key}");
    }
    let kept: Vec<_> = rows
        .iter()
        .map(|row| row["kept"].as_str().unwrap())
        .collect();
    assert_eq!(kept[..3], ["0 0", "1 1", "1 2"]);
}

#[test]
fn predicted() {
    let figures = figures("predicted");
    let rows = rows(&figures, "amoebanet-32: m = 2");
    assert_eq!(rows.len(), 6);
    for key in ["step_ms", "predicted", "beside", "replayed"] {
        assert!(rows.iter().all(|row| is_positive(row, key)), "{key}");
    }
}

#[test]
fn plain() {
    let figures = figures("plain");
    let rows = rows(&figures, "engine");
    for model in MODELS {
        assert_eq!(rows.iter().filter(|row| row["model"] == model).count(), 2);
    }
    assert!(rows.iter().all(|row| is_positive(row, "ratio")));
}

#[test]
fn breakdown() {
    let figures = figures("breakdown");
    for (model, layers) in MODELS.into_iter().zip([9, 9, 4]) {
        let table = |name: &str| rows(&figures, &format!("{model}, {name}"));
        assert_eq!(table("layers").len(), layers + 1);
        assert_eq!(table("step").len(), 1 + 2 * 6);
        assert_eq!(table("boundary").len(), 1);
        assert_eq!(table("memory").len(), 1 + 1 + 6);
        assert!(table("fixed").iter().all(|row| row["least_ms"].is_f64()));
        assert!(
            table("memory")
                .iter()
                .all(|row| is_positive(row, "peak_mib"))
        );
    }
}

#[test]
fn memory() {
    let figures = figures("memory");
    let largest = rows(&figures, "largest");
    assert_eq!(largest.len(), 3);
    for row in largest {
        assert!(is_positive(row, "trained_filters"), "{row}");
        assert!(is_positive(row, "peak_mib"), "{row}");
    }
    // What is counted by other means than shapes is what shapes say.
    for row in rows(&figures, "items") {
        let item = row["item"].as_str().unwrap();
        if ["optimizer", "gradients"].contains(&item) {
            let ratio = row["ratio"].as_f64().unwrap();
            assert!((0.8..1.1).contains(&ratio), "{row}");
        }
    }
    assert_eq!(rows(&figures, "predicted: the papers'").len(), 5);
    let folder = folder("memory");
    let markdown = fs::read_to_string(folder.join("memory.md")).unwrap();
    assert!(
        markdown.contains("| naive-1 | (18, 208) | 81505540 |"),
        "{markdown}"
    );
    assert!(
        fs::read_to_string(folder.join("memory.svg"))
            .unwrap()
            .starts_with("<svg")
    );
}

#[test]
fn pytorch() {
    let missing = run(
        "pytorch",
        &folder("missing"),
        &["--python", "no-such-python"],
    );
    let errors = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(
        errors.contains("--python target/pytorch/bin/python"),
        "{errors}"
    );
    if !python_has("import torch") {
        return skipped("python3 has no PyTorch");
    }
    let figures = figures("pytorch");
    let rows = rows(&figures, "training step");
    for model in MODELS {
        assert_eq!(rows.iter().filter(|row| row["model"] == model).count(), 4);
    }
    assert!(rows.iter().all(|row| is_positive(row, "time_over_pytorch")));
}

#[test]
fn peers_without_pytorch() {
    let folder = folder("peers-alone");
    let output = run("peers", &folder, &["--alone"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let figures = read(&folder, "peers");
    for model in MODELS {
        for (m, ways) in [(2, 6), (4, 2)] {
            let rows = peers_rows(&figures, model, m);
            assert_eq!(rows.len(), ways, "{model}, m = {m}");
            assert!(
                rows.iter()
                    .all(|row| is_positive(row, "samples_per_second"))
            );
            assert!(rows.iter().all(|row| row["over_pytorch"].is_null()));
        }
        assert!(
            peers_rows(&figures, model, 2)
                .iter()
                .all(|row| is_positive(row, "over_one"))
        );
    }
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
        let folder = folder(&format!("peers-{python}"));
        let output = run("peers", &folder, &flags);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{python}");
        assert!(words.iter().all(|word| errors.contains(word)), "{errors}");
    }
}

#[test]
fn peers() {
    if !python_has("import torch.distributed.pipelining") {
        return skipped("python3 has no PyTorch");
    }
    let figures = figures("peers");
    for model in MODELS {
        let race = peers_rows(&figures, model, 2);
        assert!(race.iter().all(|row| is_positive(row, "over_pytorch")));
        let losses = rows(&figures, &format!("{model}: losses"));
        assert_eq!(losses.len(), 3);
    }
    // That losses agree, the program sees to itself.
    assert_eq!(rows(&figures, "losses next to").len(), 5 * MODELS.len());
    let picture = fs::read_to_string(folder("peers").join("peers.svg")).unwrap();
    assert_eq!(picture.matches("<polyline").count(), 5 * MODELS.len());
}

/// The rows of a race.
fn peers_rows<'a>(figures: &'a Value, model: &str, m: usize) -> &'a Vec<Value> {
    let tables = figures["tables"].as_array().unwrap();
    let fits = |table: &&Value| {
        let title = table["title"].as_str().unwrap();
        title.starts_with(&format!("{model}: ")) && title.contains(&format!("m = {m},"))
    };
    tables.iter().find(fits).unwrap()["rows"]
        .as_array()
        .unwrap()
}

/// The CPU in place of a card: what is compared and raced is the same.
#[test]
fn gpu() {
    let folder = folder("gpu");
    let output = run("gpu", &folder, &["--alone", "--device", "cpu"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let figures = read(&folder, "gpu");
    let compared = rows(&figures, "next to the CPU");
    assert_eq!(compared.len(), 2 * 3 * 2);
    for row in compared.iter().filter(|row| row["precision"] == "f32") {
        assert!(
            row["gradient"].as_f64().is_some_and(|off| off <= 1e-4),
            "{row}"
        );
    }
    let raced = rows(&figures, "training steps on one card");
    assert_eq!(raced.len(), 2 * 2 * 2);
    assert!(
        raced
            .iter()
            .all(|row| is_positive(row, "samples_per_second"))
    );
    let markdown = fs::read_to_string(folder.join("gpu.md")).unwrap();
    assert!(markdown.contains("| ours, one stage |"), "{markdown}");
}

/// A device that is not there is said before anything is measured.
#[test]
fn gpu_without_a_card() {
    let output = run("gpu", &folder("missing"), &["--device", "cuda:77"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("device `cuda:77`"),
        "{errors}"
    );
}

#[test]
fn loading() {
    let missing = run(
        "loading",
        &folder("missing"),
        &["--python", "no-such-python"],
    );
    let errors = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(errors.contains("--python PATH"), "{errors}");
    let imports = "import torchvision, skimage, sklearn";
    if !python_has(imports) {
        return skipped("python3 has no torchvision, scikit-image and scikit-learn");
    }
    let figures = figures("loading");
    let rows = rows(&figures, "loading");
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| is_positive(row, "images_per_second")));
}
