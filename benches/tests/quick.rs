//! Each program runs from end to end on the smallest sizes and leaves figures that can be read. What
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

fn run(program: &str, folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.arg("--quick").arg("--out").arg(folder).args(flags);
    if program.ends_with("saving") {
        command.arg("--disk").arg(folder);
    }
    command.output().unwrap()
}

/// Runs a program and reads what it saved.
fn figures(bench: &str, program: &str) -> Value {
    let folder = folder(bench);
    let output = run(program, &folder, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bench}: {errors}");
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

/// Says that a test did not run its program. A test's own output is not shown when it passes, so this goes round it.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn is_positive(row: &Value, key: &str) -> bool {
    row[key].as_f64().is_some_and(|value| value > 0.0)
}

#[test]
fn saving() {
    let figures = figures("saving", env!("CARGO_BIN_EXE_saving"));
    let rows = rows(&figures, "checkpoints");
    assert_eq!(rows.len(), 2);
    // What checkpoints cost is a difference, and anything where there are only two.
    for key in ["parameters", "mebibytes", "step_ms"] {
        assert!(rows.iter().all(|row| is_positive(row, key)), "{key}");
    }
}

#[test]
fn limit() {
    let figures = figures("limit", env!("CARGO_BIN_EXE_limit"));
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
    let figures = figures("zero_bubble", env!("CARGO_BIN_EXE_zero_bubble"));
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
fn foretold() {
    let figures = figures("foretold", env!("CARGO_BIN_EXE_foretold"));
    let rows = rows(&figures, "amoebanet-32: m = 2");
    assert_eq!(rows.len(), 6);
    for key in ["step_ms", "foretold", "beside", "replayed"] {
        assert!(rows.iter().all(|row| is_positive(row, key)), "{key}");
    }
}

#[test]
fn plain() {
    let figures = figures("plain", env!("CARGO_BIN_EXE_plain"));
    let rows = rows(&figures, "engine");
    for model in MODELS {
        assert_eq!(rows.iter().filter(|row| row["model"] == model).count(), 2);
    }
    assert!(rows.iter().all(|row| is_positive(row, "ratio")));
}

#[test]
fn breakdown() {
    let figures = figures("breakdown", env!("CARGO_BIN_EXE_breakdown"));
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
fn pytorch() {
    let program = env!("CARGO_BIN_EXE_pytorch");
    let missing = run(program, &folder("missing"), &["--python", "no-such-python"]);
    let errors = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(errors.contains("--python PATH"), "{errors}");
    let has_torch = Command::new("python3")
        .args(["-c", "import torch"])
        .output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        return skipped("python3 has no PyTorch");
    }
    let figures = figures("pytorch", program);
    let rows = rows(&figures, "training step");
    for model in MODELS {
        assert_eq!(rows.iter().filter(|row| row["model"] == model).count(), 4);
    }
    assert!(rows.iter().all(|row| is_positive(row, "time_over_pytorch")));
}

#[test]
fn loading() {
    let program = env!("CARGO_BIN_EXE_loading");
    let missing = run(program, &folder("missing"), &["--python", "no-such-python"]);
    let errors = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(errors.contains("--python PATH"), "{errors}");
    let imports = "import torchvision, skimage, sklearn";
    let has_all = Command::new("python3").args(["-c", imports]).output();
    if !has_all.is_ok_and(|output| output.status.success()) {
        return skipped("python3 has no torchvision, scikit-image and scikit-learn");
    }
    let figures = figures("loading", program);
    let rows = rows(&figures, "loading");
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| is_positive(row, "images_per_second")));
}
