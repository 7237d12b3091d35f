//! Replicas of stages and of whole pipelines.

use std::fs;

use crate::{
    resume::{results, small},
    running::{Here, cases, check_contains, refuse_and_leave_nothing},
};

/// The last mini-batch has one sample.
const LAST_ALONE: &str = "--epochs 1 --batch-size 57 --micro-batches 3";

/// Cut and schedule change no bit. The last mini-batch has fewer micro-batches than replicas.
#[test]
fn runs_with_as_many_replicas_have_the_same_files() {
    let here = Here::new();
    let run = |more: &str, out: &str| {
        here.run(&small(&format!(
            "{LAST_ALONE} --replicas 3 {more} --out {out}"
        )))
    };
    let said = run("--stages 1", "one");
    check_contains(
        &said.err,
        &["stage 0 on cpu (worker 0), cpu (worker 1), cpu (worker 2): layers 0–"],
    );
    run("--stages 2", "two");
    run("--stages 2 --schedule zb-h1 --recompute never", "three");
    let expected = results(&here.join("one"));
    assert!(expected == results(&here.join("two")));
    assert!(expected == results(&here.join("three")));
    here.run(&small(&format!("{LAST_ALONE} --stages 1 --out alone")));
    assert!(expected != results(&here.join("alone")));
    let svg = here.read("two/timeline.svg");
    check_contains(&svg, &["6 workers", "stage 1 · layers"]);
}

/// Replicas of single stages, and a run that goes on with others.
#[test]
fn a_run_resumes_with_other_replicas() {
    let here = Here::new();
    let line = |replicas: &str, more: &str| {
        small(&format!(
            "--stages 2 --replicas {replicas} --schedule 1f1b --out run {more}"
        ))
    };
    let said = here.run(&line("3,1", "--max-steps 4"));
    check_contains(&said.err, &["stage 1 on cpu (worker 3): layers"]);
    let said = here.run(&line("1,2", "--max-steps 8 --resume"));
    check_contains(
        &said.err,
        &["stage 1 on cpu (worker 1), cpu (worker 2): layers"],
    );
    let config: toml::Table = here.read("run/config.toml").parse().unwrap();
    assert_eq!(config["pipeline"]["replicas"], vec![1, 2].into());
}

/// What is planned is what runs.
#[test]
fn a_plan_with_replicas_is_trained() {
    let here = Here::new();
    let layer = |index: usize, seconds: f64| {
        format!(
            "[[layer]]\nname = \"{index}\"\nforward = {seconds}\nbackward = {seconds}\n\
             parameters = 100\noutput = 100\n"
        )
    };
    // One layer takes more than half of the time.
    let times = [0.09, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01];
    let layers: String = (0..)
        .zip(times)
        .map(|(index, time)| layer(index, time))
        .collect();
    here.write(
        "profile.toml",
        format!("samples = 8\ninput = 100\n{layers}"),
    );
    // Without a limit on memory, each device gets the whole model.
    for (memory, expected) in [("1e9", vec![3]), ("3000", vec![2, 1])] {
        let plan = here.json_of(&format!(
            "plan --workers 3 --replicas --schedules 1f1b --micro-batches 8 --batch-size 64 \
             --memory {memory} --out plan.toml"
        ));
        assert_eq!(plan["replicas"], serde_json::json!(expected));
        let said =
            here.run("train --plan plan.toml --layers 3 --filters 4 --max-steps 2 --out run");
        let mut workers = 0..;
        for (stage, count) in expected.into_iter().enumerate() {
            let own = workers.by_ref().take(count);
            let own: Vec<_> = own.map(|worker| format!("cpu (worker {worker})")).collect();
            check_contains(
                &said.err,
                &[&format!("stage {stage} on {}: layers", own.join(", "))],
            );
        }
        fs::remove_dir_all(here.join("run")).unwrap();
    }
}

#[test]
fn wrong_replicas_are_errors() {
    for (flags, expected) in cases(
        "
        --replicas 0 => replicas is 0
        --replicas 2,0 => replicas is 0
        --replicas 9 => 9 replicas are more than the 8 micro-batches of a mini-batch: set --micro-batches 9
        --replicas 1,2,1 => replicas are given for 3 stages, but there are 2
        --replicas 2,1 --schedule gpipe => the schedule gpipe has no such replicas
        --replicas 2 --devices cpu,cpu,cpu => 3 devices given for 4 workers
        --replicas two => two
        --replicas 2 --shares 3,0 => shares is 0
        --replicas 2 --shares 3,2,1 => 3 shares given for --replicas 2: give one for each replica of the whole pipeline
        --shares 3,1 => 2 shares given for --replicas 1
        --replicas 2,1 --shares 3,1 => 2 shares given for --replicas 2,1
        --all-reduce mpi => --all-reduce has no effect without --replicas
        --replicas 2 --all-reduce mpi => --all-reduce mpi is for replicas in several processes: start these with --processes
        --replicas 2 --all-reduce nccl => [possible values: ring, mpi]
        --replicas 2 --shares 99,1 => replica 1 has none of the 8 micro-batches of a mini-batch: give it a larger share
        ",
    ) {
        let line = format!("train --micro-batches 8 --out run {flags}");
        refuse_and_leave_nothing(&line, expected);
    }
}
