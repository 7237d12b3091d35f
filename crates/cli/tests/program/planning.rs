//! `stovepipe simulate` and `stovepipe plan`, as a user meets them.

use std::{fs, path::Path};

use serde_json::{Value, json};
use stovepipe::{plan::Profile, schedule::Rule};
use tempfile::{TempDir, tempdir};

use crate::running::{cases, refuse, run, succeed};

fn json_of(line: &str, directory: &Path) -> Value {
    run(&format!("{line} --json"), directory).json()
}

fn floats(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

/// The paragraphs of all documents, without blocks of code.
fn paragraphs(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(paragraphs(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(path).unwrap();
            let prose = text.split("```").step_by(2);
            all.extend(
                prose
                    .flat_map(|prose| prose.split("\n\n"))
                    .map(str::to_owned),
            );
        }
    }
    all
}

/// A list of schedules in a help or document has all rules, also those that are added later.
#[test]
fn lists_of_schedules_are_complete() {
    let here = tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut texts = paragraphs(&root.join("docs"));
    texts.push(fs::read_to_string(root.join("README.md")).unwrap());
    texts.extend(["simulate --help", "train --help"].map(|line| succeed(line, here.path())));
    let mut lists = 0;
    for text in &texts {
        let words: Vec<_> = text
            .split(|c: char| !(c.is_alphanumeric() || c == '-'))
            .collect();
        let is_named = |rule: &Rule| words.contains(&rule.name());
        if Rule::ALL.iter().filter(|rule| is_named(rule)).count() >= 4 {
            let missing: Vec<_> = Rule::synchronous().filter(|rule| !is_named(rule)).collect();
            assert!(
                missing.is_empty(),
                "{missing:?} are not in the list of {text}"
            );
            lists += 1;
        }
    }
    assert!(lists >= 2, "neither help lists the schedules");
}

#[test]
fn simulations_are_as_published() {
    let here = tempdir().unwrap();
    let times = "--forward 18.522 --backward 18.086 --weight 9.337 --send 0.601";
    for (schedule, bubble) in [("1f1b", 0.2431), ("zb-h1", 0.1585), ("zb-h2", 0.1083)] {
        let line = format!("simulate --schedule {schedule} --stages 8 --micro-batches 24 {times}");
        let found = json_of(&line, here.path())["bubble"].as_f64().unwrap();
        assert!((found - bubble).abs() < 5e-5, "{schedule}: {found}");
    }
}

/// A number is for a worker's whole part, so that schedules compare.
#[test]
fn schedules_compare_at_equal_work() {
    let here = tempdir().unwrap();
    for (schedule, step, activations) in [
        ("gpipe", 33.0, vec![8.0; 4]),
        ("1f1b", 33.0, vec![4.0, 3.0, 2.0, 1.0]),
        ("interleaved --chunks 2", 28.5, vec![5.5, 4.5, 3.5, 2.5]),
        ("zb-h1", 27.0, vec![4.0, 3.0, 2.0, 1.0]),
        ("zb-h2", 24.0, vec![7.0, 5.0, 3.0, 1.0]),
        ("zb-v", 24.0, vec![4.0; 4]),
    ] {
        let line = format!("simulate --schedule {schedule} --stages 4 --micro-batches 8");
        let found = json_of(&line, here.path());
        assert_eq!(found["step_time"], step, "{schedule}");
        assert_eq!(
            floats(&found["peak_activations"]),
            activations,
            "{schedule}"
        );
        let bubble = found["bubble"].as_f64().unwrap();
        assert!((bubble - (1.0 - 24.0 / step)).abs() < 1e-12, "{schedule}");
    }
}

#[test]
fn replicas_memory_and_single_stages_are_simulated() {
    let here = tempdir().unwrap();
    let line = "simulate --schedule pipedream --stages 2 --replicas 2,1 --micro-batches 8 \
                --forward 2,1 --backward 2,1 --weight 0 --memory 10,20 --fixed-memory 5";
    let found = json_of(line, here.path());
    assert_eq!(found["workers"], 3);
    assert_eq!(floats(&found["peak_memory"]), [25.0, 25.0, 25.0]);
    assert_eq!(found["weight_versions"], json!([2, 2, 1]));
    let text = succeed(line, here.path());
    assert!(text.contains("weight versions"), "{text}");
    let line = "simulate --schedule gpipe --stages 1 --micro-batches 4 --recompute always --memory 10 --input-memory 1";
    assert_eq!(floats(&json_of(line, here.path())["peak_memory"]), [13.0]);
}

#[test]
fn a_schedule_goes_through_a_file() {
    let here = tempdir().unwrap();
    let made = json_of(
        "simulate --schedule interleaved --stages 3 --micro-batches 7 --csv a.csv --svg a.svg --trace a.json",
        here.path(),
    );
    let mut read = json_of("simulate --schedule a.csv", here.path());
    read["schedule"] = made["schedule"].clone();
    assert_eq!(read, made);
    let picture = fs::read_to_string(here.path().join("a.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("worker 2"));
    let trace: Value =
        serde_json::from_str(&fs::read_to_string(here.path().join("a.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 2 * 3 * 7 * 2);
}

#[test]
fn what_cannot_be_simulated_is_an_error() {
    let here = tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(here.path().join(name), text).unwrap();
    write("ragged.csv", "0F0,0B0\n1F0\n");
    write("unknown.csv", "0F0,0B0\n1F0,1X0\n");
    write("missing.csv", "0F0,0B0\n1F0,\n");
    write("early.csv", "0B0,0F0\n");
    write("stuck.csv", "1F0,0F0\n");
    write("ok.csv", "0F0,0B0\n");
    let size = "--stages 2 --micro-batches 2";
    for (line, says) in cases(
        "
        --schedule ragged.csv => ragged.csv: line 2: has 1 cell
        --schedule unknown.csv => unknown.csv: line 2: `1X0` is not an action
        --schedule missing.csv => worker 1 lacks 1B0
        --schedule early.csv => worker 0 has 0B0 before 0F0
        --schedule stuck.csv => deadlock: worker 0 at 1F0 waits for 0F0
        --schedule absent.csv => absent.csv` is not a schedule
        --schedule gpipe --stages 18446744073709551615 --micro-batches 4 => too many to simulate
        --schedule zb-v --stages 100000 --micro-batches 100000 => too many to simulate
        --schedule interleaved --stages 4 --micro-batches 4 --chunks 18446744073709551615 => too many to simulate
        --schedule ok.csv --stages 3 => --stages is 3, but ok.csv is for 1
        --schedule zb-h3 => `zb-h3` is not a schedule: use gpipe, 1f1b
        --schedule gpipe => --stages is needed
        --schedule gpipe --stages 2 => --micro-batches is needed
        --schedule gpipe --stages 0 --micro-batches 2 => at least one stage
        --schedule gpipe --stages 2 --micro-batches 0 => at least one micro-batch
        --stages 2 --micro-batches 2 => --schedule
        ",
    ) {
        refuse(&format!("simulate {line}"), here.path(), says);
    }
    for (line, says) in cases(
        "
        --schedule gpipe --forward -1 => forward of stage 0 is -1
        --schedule gpipe --forward NaN => forward of stage 0 is NaN
        --schedule gpipe --weight inf => weight gradient of stage 0 is inf
        --schedule gpipe --forward 1,2,3 => --forward has 3 numbers
        --schedule gpipe --bandwidth 0 => bandwidth of stage 0 is 0
        --schedule interleaved --chunks 0 => at least one chunk
        --schedule zb-h1 --replicas 1,2 => zb-h1 has no replicas
        --schedule pipedream --replicas 1,0 => stage 1 has 0 replicas
        --schedule pipedream --replicas 1,2,3 => replicas are given for 3 stages
        --schedule gpipe --svg nowhere/a.svg => nowhere/a.svg: No such file
        ",
    ) {
        refuse(&format!("simulate {line} {size}"), here.path(), says);
    }
}

/// A graph.txt of a chain: forward and backward in milliseconds, bytes of activations and parameters.
fn graph(layers: &[[f64; 4]]) -> String {
    let mut text = String::from(
        "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, \
         activation_size=10.0, parameter_size=0.000\n",
    );
    for (index, [forward, backward, activations, parameters]) in layers.iter().enumerate() {
        let node = index + 2;
        text += &format!(
            "node{node} -- Layer -- forward_compute_time={forward:.3}, backward_compute_time={backward:.3}, \
             activation_size={activations:.3}, parameter_size={parameters:.3}\n"
        );
    }
    for node in 1..=layers.len() {
        text += &format!("\tnode{node} -- node{}\n", node + 1);
    }
    text
}

/// Two layers that compute, and one of weights: the weights should be on one worker, the rest on three.
fn with_graph() -> TempDir {
    let here = tempdir().unwrap();
    let layers = [
        [100.0, 200.0, 1e6, 1e3],
        [100.0, 200.0, 1e6, 1e3],
        [50.0, 150.0, 1e3, 1e9],
    ];
    fs::write(here.path().join("graph.txt"), graph(&layers)).unwrap();
    here
}

#[test]
fn a_graph_is_split() {
    let here = with_graph();
    let found = json_of(
        "plan --profile graph.txt --workers 4 --bandwidth 1e9",
        here.path(),
    );
    let stages = found["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    assert_eq!(
        (&stages[0]["states"], &stages[0]["replicas"]),
        (&json!([0, 2]), &json!(3))
    );
    assert_eq!(
        (&stages[1]["states"], &stages[1]["replicas"]),
        (&json!([2, 3]), &json!(1))
    );
    // 600 ms over three workers, with 4 · 2 · 2 kB / (1 GB/s · 3) for their gradients; 200 ms.
    let expected = (0.6 + 4.0 * 2.0 * 2e3 / (1e9 * 3.0)) / 3.0;
    assert!((found["stage_time"].as_f64().unwrap() - expected).abs() < 1e-12);
    assert_eq!(found["schedule"], "1f1b");
    // Without a flush, a mini-batch in a row takes hardly more than the slowest stage.
    let asynchronous = &found["runners_up"][0];
    let each = asynchronous["step_time"].as_f64().unwrap() / 16.0;
    assert!((1.0..1.2).contains(&(each / expected)), "{each}");
    assert_eq!(found["runners_up"][0]["schedule"], "pipedream");
    let text = succeed(
        "plan --profile graph.txt --workers 4 --bandwidth 1e9",
        here.path(),
    );
    assert!(text.contains("0.200001778 s a mini-batch"), "{text}");

    let nested = json_of(
        "plan --profile graph.txt --levels 2,2 --bandwidth 16e9 1e9",
        here.path(),
    );
    let stages = nested["stages"].as_array().unwrap();
    assert!(
        stages
            .iter()
            .all(|stage| stage["inside"]["stages"].is_array())
    );
}

#[test]
fn a_chain_is_planned_and_written_down() {
    let here = tempdir().unwrap();
    let layer = |name, forward: f64| {
        format!(
            "[[layer]]\nname = \"{name}\"\nforward = {forward}\nbackward = {}\n\
             parameters = 1000\noutput = 1000\nkept = 5000\n",
            2.0 * forward
        )
    };
    let layers: String = [("a", 0.01), ("b", 0.01), ("c", 0.02)]
        .map(|(n, f)| layer(n, f))
        .concat();
    let profile = format!("samples = 4\ninput = 100\n{layers}");
    fs::write(here.path().join("profile.toml"), profile).unwrap();
    let line = "plan --workers 2 --recompute never --micro-batches 8";
    let both = format!("{line} --schedules 1f1b,gpipe");
    let found = json_of(&format!("{both} --out plan.toml"), here.path());
    assert_eq!(found["exact"], true);
    assert_eq!(found["balance"], json!([2, 1]));
    // Nine turns of 60 ms.
    assert!((found["step_time"].as_f64().unwrap() - 0.54).abs() < 1e-9);
    assert_eq!(found["stage_time"], 0.06);
    assert_eq!(found["stages"][1]["layers"], json!([2, 3]));
    assert_eq!(
        found["runners_up"][0]["why"],
        "as fast, but does not compute or keep less"
    );
    // 1F1B holds two micro-batches of 100 + 2 · 5000 bytes, four times the parameters, and the gradients of a layer.
    let best = json_of(
        &format!("{line} --schedules 1f1b --memory 30000"),
        here.path(),
    );
    assert_eq!(best["memory"][0], 8000 + 1000 + 2 * 10100);
    refuse(
        &format!("{line} --schedules gpipe --memory 30000"),
        here.path(),
        "no pipeline fits: the one that comes closest needs",
    );
    let plan = fs::read_to_string(here.path().join("plan.toml")).unwrap();
    assert!(
        plan.contains("balance = \"2,1\"") && plan.contains("batch-size = 32"),
        "{plan}"
    );
    let text = succeed(&both, here.path());
    assert!(
        text.contains("0–1 (a … b)") && text.contains("samples/s"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_planned_is_an_error() {
    let here = with_graph();
    let write = |name: &str, text: &str| fs::write(here.path().join(name), text).unwrap();
    let good = fs::read_to_string(here.path().join("graph.txt")).unwrap();
    write("cycle.txt", &format!("{good}\tnode4 -- node2\n"));
    write("unknown.txt", &format!("{good}\tnode4 -- node9\n"));
    write(
        "negative.txt",
        &good.replacen("forward_compute_time=100", "forward_compute_time=-100", 1),
    );
    write(
        "nan.txt",
        &good.replacen(
            "backward_compute_time=200.000",
            "backward_compute_time=NaN",
            1,
        ),
    );
    write(
        "field.txt",
        &good.replacen("activation_size=1000000.000, ", "", 1),
    );
    let layer =
        "[[layer]]\nname = \"a\"\nforward = 1.0\nbackward = 1.0\nparameters = 1\noutput = 1\n";
    write("one.toml", &format!("samples = 1\ninput = 1\n{layer}"));
    write(
        "negative.toml",
        &format!(
            "samples = 1\ninput = 1\n{}",
            layer.replace("= 1.0", "= -1.0")
        ),
    );
    write(
        "nan.toml",
        &format!(
            "samples = 1\ninput = 1\n{}",
            layer.replacen("= 1.0", "= nan", 1)
        ),
    );
    write(
        "field.toml",
        &format!(
            "samples = 1\ninput = 1\n{}",
            layer.replace("output = 1\n", "")
        ),
    );
    write("machine.toml", "[[device]]\nname = \"cpu\"\nspeed = 0.0\n");
    for (line, says) in cases(
        "
        --profile absent.toml => absent.toml: No such file
        --profile cycle.txt => cycle.txt: line
        --profile unknown.txt => unknown.txt: line 8
        --profile negative.txt => negative.txt: line 2
        --profile nan.txt => nan.txt: line 2
        --profile field.txt => field.txt: line 2
        --profile negative.toml => negative.toml: line 5
        --profile nan.toml => nan.toml: line 5
        --profile field.toml => field.toml: line 3
        --profile one.toml --workers 2 => 2 workers are more than the model's 1 layers
        --profile one.toml --workers 0 => no devices
        --profile graph.txt --workers 0 => no device
        --profile graph.txt --workers 3 --levels 2,2 => --levels join 4 devices, but there are 3 workers
        --profile graph.txt --levels 2,2 --bandwidth 1,2,3 => 3 bandwidths for 2 levels
        --profile graph.txt --bandwidth 0 => --bandwidth is 0
        --profile graph.txt --bandwidth NaN => --bandwidth is NaN
        --profile graph.txt --latency -1 => --latency
        --profile graph.txt --workers 100000 => more than the 4096
        --profile graph.txt --schedules gpipe => --schedules is not for a graph.txt
        --profile one.toml --workers 1 --schedules pipedream => planned from a graph.txt alone
        --profile graph.txt --memory 10 => no partition fits into 10 bytes
        --profile graph.txt --out plan.toml => leave --out out
        --profile one.toml --workers 1 --micro-batches 9 => cannot be cut into 9 micro-batches
        --profile one.toml --workers 1 --memory 1 => no pipeline fits
        --profile one.toml --schedules zb-h9 => `zb-h9` is not a schedule
        --profile one.toml --machine machine.toml => machine.toml: line 3
        --profile one.toml --machine machine.toml --workers 2 => cannot be used with
        ",
    ) {
        refuse(&format!("plan {line}"), here.path(), says);
    }
}

/// From measuring to training, as the README has it.
#[test]
fn a_measured_plan_is_trained() {
    let here = tempdir().unwrap();
    let line = "plan --measure --filters 4 --batch-size 256 --workers 2 --write-machine machine.toml --out plan.toml";
    let plan = json_of(line, here.path());
    let machine = fs::read_to_string(here.path().join("machine.toml")).unwrap();
    // Nothing lies between a device and itself.
    assert!(
        machine.contains("memory") && !machine.contains("bandwidth"),
        "{machine}"
    );
    // What was written can be planned from.
    let again = json_of("plan --machine machine.toml --batch-size 256", here.path());
    assert_eq!(again["balance"], plan["balance"]);
    succeed(
        "train --plan plan.toml --filters 4 --epochs 1 --out run",
        here.path(),
    );
    let summary = fs::read_to_string(here.path().join("run/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let stages = plan["balance"].as_array().unwrap().len();
    assert_eq!(summary["stages"].as_array().unwrap().len(), stages);
    let config = fs::read_to_string(here.path().join("run/config.toml")).unwrap();
    let schedule = plan["schedule"].as_str().unwrap();
    assert!(
        config.contains(&format!("schedule = \"{schedule}\"")),
        "{config}"
    );
    assert!(config.contains("batch-size = 256"), "{config}");
}

/// What passes between layers is half as large in bf16, parameters have copies, and the run computes in it, too.
#[test]
fn a_plan_for_mixed_precision_is_measured_in_it() {
    let here = tempdir().unwrap();
    let measure = |precision: &str| {
        let line = "plan --measure --filters 4 --batch-size 16 --micro-batches 2 --out plan.toml";
        let line = format!("{line} --precision {precision} --profile {precision}.toml");
        succeed(&line, here.path());
        let text = fs::read_to_string(here.path().join(format!("{precision}.toml")));
        Profile::from_toml(&text.unwrap()).unwrap()
    };
    let (whole, half) = (measure("f32"), measure("bf16"));
    assert_eq!(whole.input, 2 * half.input);
    for (whole, half) in whole.layers.iter().zip(&half.layers) {
        assert_eq!(
            (whole.output, whole.parameters),
            (2 * half.output, half.parameters)
        );
    }
    let memory = |precision: &str| {
        let one =
            "--workers 1 --micro-batches 2 --schedules gpipe --recompute never --batch-size 16";
        let line = format!("plan --profile bf16.toml {one} --precision {precision}");
        json_of(&line, here.path())["memory"][0].as_u64().unwrap()
    };
    let parameters: u64 = half.layers.iter().map(|layer| layer.parameters).sum();
    assert_eq!(memory("bf16") - memory("f32"), parameters);

    let line = "train --plan plan.toml --filters 4 --epochs 1 --per-class 4 --out run";
    succeed(line, here.path());
    let config = fs::read_to_string(here.path().join("run/config.toml")).unwrap();
    assert!(config.contains("precision = \"bf16\""), "{config}");
}

#[test]
fn a_run_that_does_not_fit_does_not_start() {
    let here = tempdir().unwrap();
    refuse(
        "train --epochs 1 --out run --device-memory 1000000",
        here.path(),
        "the run needs about",
    );
    assert!(!here.path().join("run").exists());
    let text = succeed("train --dry-run --device-memory 1000000", here.path());
    assert!(text.contains("DOES NOT FIT"), "{text}");
    refuse(
        "train --epochs 1 --device-memory 1,2,3",
        here.path(),
        "device-memory has 3 numbers for 2 devices",
    );
}
