//! `stovepipe simulate` and `stovepipe plan`, as a user meets them.

use std::fs;

use serde_json::{Value, json};
use stovepipe::{plan::Profile, schedule::Rule};

use crate::{
    docs::files,
    running::{Here, check_contains, check_lacks, root},
};

fn floats(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

/// A list of schedules in a help or document has all rules, also those that are added later.
#[test]
fn lists_of_schedules_are_complete() {
    let here = Here::new();
    let mut texts = Vec::new();
    for page in files(&root().join("docs"), "md") {
        let text = fs::read_to_string(page).unwrap();
        // Without blocks of code.
        for prose in text.split("```").step_by(2) {
            texts.extend(prose.split("\n\n").map(str::to_owned));
        }
    }
    texts.push(fs::read_to_string(root().join("README.md")).unwrap());
    texts.extend(["simulate --help", "train --help"].map(|line| here.succeed(line)));
    let mut lists = 0;
    for text in &texts {
        let words: Vec<_> = text
            .split(|c: char| !(c.is_alphanumeric() || c == '-'))
            .collect();
        let is_named = |rule: &Rule| words.contains(&rule.name());
        if Rule::ALL.iter().filter(|rule| is_named(rule)).count() >= 4 {
            let missing: Vec<_> = Rule::synchronous().filter(|rule| !is_named(rule)).collect();
            assert!(missing.is_empty(), "{missing:?} are not in {text}");
            lists += 1;
        }
    }
    assert!(lists >= 2, "neither help lists the schedules");
}

#[test]
fn simulations_are_as_published() {
    let here = Here::new();
    let times = "--forward 18.522 --backward 18.086 --weight 9.337 --send 0.601";
    for (schedule, bubble) in [("1f1b", 0.2431), ("zb-h1", 0.1585), ("zb-h2", 0.1083)] {
        let line = format!("simulate --schedule {schedule} --stages 8 --micro-batches 24 {times}");
        let found = here.json_of(&line)["bubble"].as_f64().unwrap();
        assert!((found - bubble).abs() < 5e-5, "{schedule}: {found}");
    }
}

/// A number is for a worker's whole part, so that schedules compare.
#[test]
fn schedules_compare_at_equal_work() {
    let here = Here::new();
    for (schedule, step, activations) in [
        ("gpipe", 33.0, vec![8.0; 4]),
        ("1f1b", 33.0, vec![4.0, 3.0, 2.0, 1.0]),
        ("interleaved --chunks 2", 28.5, vec![5.5, 4.5, 3.5, 2.5]),
        ("zb-h1", 27.0, vec![4.0, 3.0, 2.0, 1.0]),
        ("zb-h2", 24.0, vec![7.0, 5.0, 3.0, 1.0]),
        ("zb-v", 24.0, vec![4.0; 4]),
        ("v-min", 29.5, vec![2.0; 4]),
        ("v-half", 26.5, vec![3.0; 4]),
    ] {
        let line = format!("simulate --schedule {schedule} --stages 4 --micro-batches 8");
        let found = here.json_of(&line);
        assert_eq!(found["step_time"], step, "{schedule}");
        let kept = floats(&found["peak_activations"]);
        assert_eq!(kept, activations, "{schedule}");
        let bubble = found["bubble"].as_f64().unwrap();
        assert!((bubble - (1.0 - 24.0 / step)).abs() < 1e-12, "{schedule}");
    }
}

#[test]
fn replicas_memory_and_single_stages_are_simulated() {
    let here = Here::new();
    let line = "simulate --schedule pipedream --stages 2 --replicas 2,1 --micro-batches 2 --window 4 \
                --forward 2,1 --backward 2,1 --weight 0 --memory 10,20 --fixed-memory 5";
    let found = here.json_of(line);
    assert_eq!(found["workers"], 3);
    assert_eq!(found["micro_batches"], 8);
    assert_eq!(floats(&found["peak_memory"]), [25.0, 25.0, 25.0]);
    assert_eq!(found["weight_versions"], json!([2, 2, 1]));
    let text = here.succeed(line);
    check_contains(
        &text,
        &[
            "weight versions",
            "4 updates after 2 micro-batches each, weight stashing",
        ],
    );
    let line = format!("{line} --vertical-sync");
    assert_eq!(here.json_of(&line)["weight_versions"], json!([2, 2, 2]));
    check_contains(&here.succeed(&line), &["vertical sync"]);
    let line = "simulate --schedule gpipe --stages 1 --micro-batches 4 --recompute always --memory 10 --input-memory 1";
    assert_eq!(floats(&here.json_of(line)["peak_memory"]), [13.0]);
}

#[test]
fn a_schedule_goes_through_a_file() {
    let here = Here::new();
    let line = "simulate --schedule interleaved --stages 3 --micro-batches 7";
    let made = here.json_of(&format!("{line} --csv a.csv --svg a.svg --trace a.json"));
    here.succeed(&format!(
        "{line} --memory 1e6 --memory-svg b.svg --device-memory 1e6"
    ));
    let memory = here.read("b.svg");
    assert!(
        memory.contains("of 976.6 KiB") && memory.contains("over limit"),
        "{memory}"
    );
    let mut read = here.json_of("simulate --schedule a.csv");
    read["schedule"] = made["schedule"].clone();
    assert_eq!(read, made);
    let picture = here.read("a.svg");
    assert!(picture.starts_with("<svg") && picture.contains("worker 2"));
    assert!(here.json("a.json")["traceEvents"].as_array().unwrap().len() > 2 * 3 * 7 * 2);
}

/// A file of PyTorch, with communication: see `crates/schedule/tests/schedule/pytorch`.
#[test]
fn files_of_pytorch_are_simulated() {
    let here = Here::new();
    let folder = root().join("crates/schedule/tests/schedule/pytorch");
    for file in files(&folder, "csv") {
        let found = here.json_of(&format!("simulate --schedule {}", file.display()));
        assert_eq!(
            (&found["workers"], &found["stages"]),
            (&json!(2), &json!(4))
        );
    }
}

/// Far more stages than a quadratic algorithm could take.
#[test]
fn a_million_stages_are_simulated() {
    let here = Here::new();
    let line = "simulate --schedule 1f1b --stages 1000000 --micro-batches 1";
    let text = here.succeed(line);
    check_contains(
        &text,
        &[
            "1000000 workers",
            "step 3000000.0000 ms",
            "and 999968 more",
            "too large to be drawn here",
        ],
    );
    here.refuse_all(
        line,
        "--csv a.csv => a.csv would have 2000000000000 cells, a row for each worker",
    );
    assert!(here.is_empty());
}

#[test]
fn what_cannot_be_simulated_is_an_error() {
    let here = Here::new();
    here.write("unknown.csv", "0F0,0B0\n1F0,1X0\n");
    here.write("missing.csv", "0F0,0B0\n1F0,\n");
    here.write("early.csv", "0B0,0F0\n");
    here.write("stuck.csv", "1F0,0F0\n");
    here.write("ok.csv", "0F0,0B0\n");
    here.write("odd.csv", "0F0,0F1,0B0,0B1,0U1,0F2,0B2,0U2\n");
    here.refuse_all(
        "simulate",
        "
        --schedule unknown.csv => unknown.csv: line 2: `1X0` is not an action
        --schedule missing.csv => worker 1 lacks 1B0
        --schedule early.csv => worker 0 has 0B0 before 0F0
        --schedule stuck.csv => deadlock: worker 0 at 1F0 waits for 0F0
        --schedule absent.csv => absent.csv` is not a schedule
        --schedule gpipe --stages 18446744073709551615 --micro-batches 4 => of memory, but only
        --schedule zb-v --stages 100000 --micro-batches 100000 => 200000 stages with 100000 micro-batches takes about 5.5 TiB of memory, but only
        --schedule interleaved --stages 4 --micro-batches 4 --chunks 18446744073709551615 => of memory, but only
        --schedule odd.csv => odd.csv: worker 0 has 0U2, but updates come every 2 micro-batches: after 1, 3, …
        --schedule ok.csv --vertical-sync => ok.csv has no updates: leave --vertical-sync out
        --schedule ok.csv --window 2 => --window has no effect
        --schedule pipedream --stages 2 --micro-batches 2 --window 0 => --window is 0
        --schedule pipedream --stages 2 --micro-batches 0 => at least one micro-batch
        --schedule 1f1b --stages 2 --micro-batches 2 --vertical-sync => --vertical-sync has no effect
        --schedule ok.csv --stages 3 => --stages is 3, but ok.csv is for 1
        --schedule zb-h3 => `zb-h3` is not a schedule: use gpipe, 1f1b
        --schedule gpipe => --stages is needed
        --schedule gpipe --stages 2 => --micro-batches is needed
        --schedule gpipe --stages 0 --micro-batches 2 => at least one stage
        --schedule gpipe --stages 2 --micro-batches 0 => at least one micro-batch
        --stages 2 --micro-batches 2 => --schedule
        ",
    );
    here.refuse_all(
        "simulate --stages 2 --micro-batches 2",
        "
        --schedule gpipe --forward -1 => forward of stage 0 is -1
        --schedule gpipe --forward NaN => forward of stage 0 is NaN
        --schedule gpipe --weight inf => weight gradient of stage 0 is inf
        --schedule gpipe --forward 1,2,3 => --forward has 3 numbers
        --schedule gpipe --bandwidth 0 => bandwidth is 0, but must be greater than 0
        --schedule gpipe --bandwidth -1 => bandwidth is -1, but must be greater than 0
        --schedule interleaved --chunks 0 => at least one chunk
        --schedule zb-h1 --replicas 1,2 => zb-h1 has no replicas
        --schedule pipedream --replicas 1,0 => stage 1 has 0 replicas
        --schedule pipedream --replicas 3,1 => stage 0 has 3 replicas for 2 micro-batches: give it at most
        --schedule gpipe --memory-svg a => without --memory
        --schedule gpipe --memory 1 --device-memory 1 => without --memory-svg
        --schedule gpipe --svg a --csv ./a => ./a would be written twice: name different files
        --schedule pipedream --replicas 1,2,3 => replicas are given for 3 stages
        --schedule gpipe --svg nowhere/a.svg => nowhere/a.svg: No such file
        ",
    );
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
fn with_graph() -> Here {
    let here = Here::new();
    let (heavy, weights) = ([100.0, 200.0, 1e6, 1e3], [50.0, 150.0, 1e3, 1e9]);
    here.write("graph.txt", graph(&[heavy, heavy, weights]));
    here
}

#[test]
fn a_graph_is_split() {
    let here = with_graph();
    let line = "plan --profile graph.txt --workers 4 --bandwidth 1e9";
    let found = here.json_of(line);
    let stages = found["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    for (stage, states, replicas) in [(&stages[0], [0, 2], 3), (&stages[1], [2, 3], 1)] {
        assert_eq!(stage["states"], json!(states));
        assert_eq!(stage["replicas"], replicas);
    }
    // 600 ms over three workers, with 4 · 2 · 2 kB / (1 GB/s · 3) for their gradients; 200 ms.
    let expected = (0.6 + 4.0 * 2.0 * 2e3 / (1e9 * 3.0)) / 3.0;
    assert!((found["stage_time"].as_f64().unwrap() - expected).abs() < 1e-12);
    assert_eq!(found["schedule"], "1f1b");
    // Without a flush, a mini-batch in a row takes hardly more than the slowest stage.
    let asynchronous = &found["runners_up"][0];
    assert_eq!(asynchronous["micro_batches"], 18); // whole updates of 3
    let each = asynchronous["step_time"].as_f64().unwrap() / 18.0;
    assert!((1.0..1.2).contains(&(each / expected)), "{each}");
    assert_eq!(found["runners_up"][0]["schedule"], "pipedream");
    check_contains(&here.succeed(line), &["0.200001778 s a mini-batch"]);

    let nested = here.json_of("plan --profile graph.txt --levels 2,2 --bandwidth 16e9 1e9");
    let mut stages = nested["stages"].as_array().unwrap().iter();
    assert!(stages.all(|stage| stage["inside"]["stages"].is_array()));
}

#[test]
fn a_chain_is_planned_and_written_down() {
    let here = Here::new();
    let layer = |(name, forward, backward)| {
        format!(
            "[[layer]]\nname = \"{name}\"\nforward = {forward}\nbackward = {backward}\n\
             parameters = 1000\noutput = 1000\nkept = 5000\n"
        )
    };
    let layers = [("a", 0.01, 0.02), ("b", 0.01, 0.02), ("c", 0.02, 0.04)];
    let layers = layers.map(layer).concat();
    let profile = format!("samples = 4\ninput = 100\n{layers}");
    here.write("profile.toml", profile);
    let line = "plan --workers 2 --recompute never --micro-batches 8";
    let both = format!("{line} --schedules 1f1b,gpipe");
    let found = here.json_of(&format!("{both} --out plan.toml"));
    assert_eq!(found["exact"], true);
    assert_eq!(found["balance"], json!([2, 1]));
    // Nine turns of 60 ms.
    assert!((found["step_time"].as_f64().unwrap() - 0.54).abs() < 1e-9);
    assert_eq!(found["stage_time"], 0.06);
    assert_eq!(found["stages"][1]["layers"], json!([2, 3]));
    let why = "as fast, but does not compute or keep less";
    assert_eq!(found["runners_up"][0]["why"], why);
    // Four updates of eight micro-batches, and one to fill the pipeline.
    let line_of = format!("{line} --schedules pipedream");
    let streamed = here.json_of(&format!("{line_of} --out streamed.toml"));
    assert!((streamed["step_time"].as_f64().unwrap() - 33.0 / 4.0 * 0.06).abs() < 1e-9);
    let (own, usual) = (&streamed["without_flush"], here.json_of(line));
    let gain = usual["step_time"].as_f64().unwrap() / streamed["step_time"].as_f64().unwrap();
    assert!((own["gain"].as_f64().unwrap() - gain).abs() < 1e-9);
    assert_eq!(own["than"], usual["schedule"]);
    assert_eq!(own["staleness"], json!([1, 0]));
    assert_eq!(own["weight_versions"], json!([2, 1]));
    check_contains(
        &here.succeed(&line_of),
        &["late by up to 1, 0 updates", "update 495"],
    );
    check_contains(&here.read("streamed.toml"), &["schedule = \"pipedream\""]);
    // 1F1B holds two micro-batches of 2 · 5000 bytes, the inputs of all eight, four times the parameters, and the
    // gradients of a layer.
    let best = here.json_of(&format!("{line} --schedules 1f1b --memory 30000"));
    assert_eq!(best["memory"][0], 8000 + 1000 + 8 * 100 + 2 * 10000);
    // An update moves two states of the first two layers there and back, and their gradients there twice.
    let offloaded = here.json_of(&format!(
        "{both} --offload optimizer --offload-bandwidth 1e6"
    ));
    let waits = offloaded["step_time"].as_f64().unwrap() - 0.54;
    assert!((waits - 6.0 * 2000.0 / 1e6).abs() < 1e-9, "{waits}");
    // A profile that says nothing of it: copies of half the size of two layers.
    let mixed = format!("{line} --schedules 1f1b --memory 31000 --precision bf16");
    let more = here.json_of(&mixed)["memory"][0].as_u64();
    assert_eq!(more, best["memory"][0].as_u64().map(|bytes| bytes + 1000));
    let line = format!("{line} --schedules gpipe --memory 30000");
    here.refuse(&line, "no pipeline fits: the one that comes closest needs");
    let plan = here.read("plan.toml");
    check_contains(&plan, &["balance = \"2,1\"", "batch-size = 32"]);
    check_contains(&here.succeed(&both), &["0–1 (a … b)", "samples/s"]);
}

#[test]
fn what_cannot_be_planned_is_an_error() {
    let here = with_graph();
    let good = here.read("graph.txt");
    here.write("cycle.txt", format!("{good}\tnode4 -- node2\n"));
    here.write("unknown.txt", format!("{good}\tnode4 -- node9\n"));
    let layer =
        "[[layer]]\nname = \"a\"\nforward = 1.0\nbackward = 1.0\nparameters = 1\noutput = 1\n";
    let one = format!("samples = 1\ninput = 1\n{layer}");
    here.write("one.toml", &one);
    for (name, good, from, to) in [
        ("negative.txt", &good, "=100", "=-100"),
        ("nan.txt", &good, "=200.000", "=NaN"),
        ("huge.txt", &good, "=200.000", "=1e308"),
        ("field.txt", &good, "activation_size=1000000.000, ", ""),
        ("negative.toml", &one, "= 1.0", "= -1.0"),
        ("nan.toml", &one, "= 1.0", "= nan"),
        ("field.toml", &one, "output = 1\n", ""),
    ] {
        here.write(name, good.replacen(from, to, 1));
    }
    here.write("machine.toml", "[[device]]\nname = \"cpu\"\nspeed = 0.0\n");
    here.refuse_all(
        "plan",
        "
        --profile huge.txt => 1e305
        --profile one.toml --batch-size 100M --micro-batches 100M => micro-batches is 100000000, but must be from 1 to 65536
        --profile absent.toml => absent.toml: No such file
        --profile cycle.txt => cycle.txt: line
        --profile unknown.txt => unknown.txt: line 8
        --profile negative.txt => negative.txt: line 2
        --profile nan.txt => nan.txt: line 2
        --profile field.txt => field.txt: line 2
        --profile negative.toml => negative.toml: line 5
        --profile nan.toml => nan.toml: line 5
        --profile field.toml => field.toml: line 3
        --profile one.toml --workers 2 => 2 workers are more than the model's 1 layer:
        --profile one.toml --workers 0 => no devices
        --profile graph.txt --workers 0 => no device
        --profile graph.txt --workers 3 --levels 2,2 => --levels join 4 devices, but there are 3 workers
        --profile graph.txt --levels 2,2 --bandwidth 1,2,3 => 3 bandwidths for 2 levels
        --profile graph.txt --bandwidth 0 => bandwidth is 0, but must be greater than 0
        --profile graph.txt --bandwidth NaN => bandwidth is NaN
        --profile graph.txt --latency -1 => latency is -1, but must be at least 0
        --profile graph.txt --workers 100000 => more than the 4096
        --profile graph.txt --schedules gpipe => --schedules has no effect on a graph.txt: leave it out
        --profile graph.txt --batch-size 8 => --batch-size has no effect on a graph.txt
        --profile graph.txt --micro-batches 2,4 => for one number of --micro-batches
        --profile one.toml --threads-per-stage 2 => --threads-per-stage has no effect without --measure or --out
        --profile one.toml --workers 1 --offload-bandwidth 1e9 => --offload-bandwidth has no effect without --offload optimizer
        --profile one.toml --workers 1 --offload optimizer --offload-bandwidth 0 => offload-bandwidth is 0, but must be greater than 0
        --profile one.toml --workers 1 --offload optimizer --offload-to states => --measure
        --profile one.toml --workers 1 --schedules 1f1b,pipedream => pipedream is never chosen
        --profile graph.txt --memory 10 => no partition fits into 10 B a worker
        --profile graph.txt --out plan.toml => leave --out out
        --profile one.toml --workers 1 --micro-batches 9 => cannot be cut into 9 micro-batches
        --profile one.toml --workers 1 --memory 1 => , whose device has 1 B; more
        --profile one.toml --workers 1 --precision f16 --schedules pipedream => pipedream does not work with --precision f16
        --profile one.toml --schedules zb-h9 => `zb-h9` is not a schedule
        --profile one.toml --machine machine.toml => machine.toml: line 3
        --profile one.toml --machine machine.toml --workers 2 => cannot be used with
        ",
    );
}

/// From measuring to training, as the README has it.
#[test]
fn a_measured_plan_is_trained() {
    let here = Here::new();
    let line = "plan --measure --filters 4 --batch-size 256 --workers 2 --write-machine machine.toml --out plan.toml";
    let plan = here.json_of(line);
    let machine = here.read("machine.toml");
    // Nothing lies between a device and itself.
    check_contains(&machine, &["memory"]);
    check_lacks(&machine, &["bandwidth"]);
    // What was written can be planned from.
    let again = here.json_of("plan --machine machine.toml --batch-size 256");
    assert_eq!(again["balance"], plan["balance"]);
    here.succeed("train --plan plan.toml --filters 4 --per-class 40 --epochs 1 --out run");
    let summary = here.summary("run");
    let stages = plan["balance"].as_array().unwrap().len();
    assert_eq!(summary["stages"].as_array().unwrap().len(), stages);
    let schedule = format!("schedule = {}", plan["schedule"]);
    let config = here.read("run/config.toml");
    check_contains(&config, &[&schedule, "batch-size = 256"]);
}

/// What passes between layers is half as large in bf16, parameters have copies, and the run computes in it, too.
#[test]
fn a_plan_for_mixed_precision_is_measured_in_it() {
    let here = Here::new();
    let measure = |precision: &str| {
        let line = "plan --measure --filters 4 --batch-size 16 --micro-batches 2 --out plan.toml";
        let line = format!("{line} --precision {precision} --profile {precision}.toml");
        here.succeed(&line);
        Profile::from_toml(&here.read(&format!("{precision}.toml"))).unwrap()
    };
    let (whole, half) = (measure("f32"), measure("bf16"));
    assert_eq!(whole.input, 2 * half.input);
    for (whole, half) in whole.layers.iter().zip(&half.layers) {
        assert_eq!(whole.output, 2 * half.output);
        assert_eq!(whole.parameters, half.parameters);
    }
    let mut without = half.clone();
    (without.layers.iter_mut()).for_each(|layer| layer.cast = None);
    here.write("without.toml", without.to_toml());
    let memory = |profile: &str| {
        let one =
            "--workers 1 --micro-batches 2 --schedules gpipe --recompute never --batch-size 16";
        here.json_of(&format!("plan --profile {profile} {one}"))["memory"][0]
            .as_u64()
            .unwrap()
    };
    let parameters: u64 = half.layers.iter().map(|layer| layer.parameters).sum();
    assert_eq!(memory("bf16.toml") - memory("without.toml"), parameters / 2);

    here.run("train --plan plan.toml --filters 4 --epochs 1 --per-class 4 --out run");
    check_contains(&here.read("run/config.toml"), &["precision = \"bf16\""]);
}

#[test]
fn a_run_that_does_not_fit_does_not_start() {
    let here = Here::new();
    here.refuse_all(
        "train --epochs 1 --out run",
        "
        --device-memory 1000000 => the run needs about
        --device-memory 1,2,3 => device-memory has 3 numbers for 2 devices
        ",
    );
    assert!(!here.join("run").exists());
    let text = here.succeed("train --dry-run --device-memory 1000000");
    check_contains(&text, &["DOES NOT FIT"]);
}
