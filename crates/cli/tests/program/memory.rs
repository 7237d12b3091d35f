//! Recomputation by layer, and runs that are made to fit.

use crate::running::{Here, check_contains, root};

/// A model of nine layers that keeps much more for eight micro-batches than for one.
const LARGE: &str = "train --layers 3 --filters 24 --batch-size 64 --micro-batches 8 --schedule gpipe \
                     --max-steps 2 --epochs 1";
/// Bytes between what it needs with and without recomputation.
const BETWEEN: &str = "--device-memory 110000000";

#[test]
fn layers_that_are_recomputed_change_no_bit() {
    let here = Here::new();
    let train = |more: &str, out: &str| {
        let line = "train --layers 3 --filters 4 --batch-size 48 --max-steps 4 --epochs 1";
        here.succeed(&format!("{line} {more} --out {out}"));
        here.model(out)
    };
    let never = train("--recompute never", "never");
    assert!(train("--recompute 0-2,4,6-8", "layers") == never);
    assert!(train("--schedule v-half --recompute 1,2-3,5-7", "v-half") == never);
    assert!(
        here.read("layers/config.toml")
            .contains("recompute = \"0-2,4,6-8\"")
    );
    // A run goes on with other layers.
    let line =
        "train --layers 3 --filters 4 --batch-size 48 --max-steps 2 --epochs 1 --recompute 0-2";
    here.succeed(&format!("{line} --out resumed"));
    here.succeed("train --resume --out resumed --max-steps 4 --recompute 3,7-8");
    assert!(here.model("resumed") == never);
}

#[test]
fn what_does_not_fit_ends_in_a_command_that_does() {
    let here = Here::new();
    let never = format!("{LARGE} --recompute never --out never");
    here.succeed(&never);
    let line = format!("{LARGE} {BETWEEN} --recompute never --out fits");
    let error = here.refuse(&line, "this fits, and gives the same result: stovepipe ");
    let (_, command) = error.trim().rsplit_once(": stovepipe ").unwrap();
    check_contains(command, &["--schedule ", "--recompute "]);
    here.succeed(&command.replace('\'', ""));
    assert!(here.model("fits") == here.model("never"));
    // Nothing helps here.
    let error = here.refuse(
        &format!("{LARGE} --device-memory 6000000"),
        "error: the run needs about",
    );
    check_contains(&error, &["\nlayer ", " alone needs about "]);
    // The command has no flag that it refuses, and no other result.
    let line = LARGE.replace("gpipe", "interleaved") + " --chunks 2 --recompute never";
    let error = here.refuse(
        &format!("{line} --device-memory 45000000 --out chunks"),
        "this fits",
    );
    let (_, command) = error.trim().rsplit_once(": stovepipe ").unwrap();
    here.succeed(&command.replace('\'', ""));
    let line = LARGE.replace("gpipe", "pipedream");
    let error = here.refuse(
        &format!("{line} --recompute never --device-memory 35000000"),
        "the run needs about",
    );
    assert!(
        !error.contains("fits") || error.contains("--schedule pipedream"),
        "{error}"
    );
}

#[test]
fn what_is_not_given_is_chosen_to_fit() {
    let here = Here::new();
    let by_layer = format!("{LARGE} {BETWEEN} --recompute by-layer --dry-run");
    let text = here.succeed(&by_layer);
    check_contains(
        &text,
        &[": fits", "chosen: schedule gpipe, recompute layers "],
    );
    let line = format!("{LARGE} {BETWEEN} --memory auto --out auto");
    let run = here.run(&line);
    check_contains(
        &(run.out + &run.err),
        &["chosen: schedule gpipe, recompute ", ": fits"],
    );
    assert!(here.read("auto/memory.svg").starts_with("<svg"));
    check_contains(&here.read("auto/report.html"), &["Predicted memory"]);
    // It is in the run's configuration, and not chosen again.
    let config = here.read("auto/config.toml");
    assert!(!config.contains("by-layer"), "{config}");
    here.succeed("train --resume --out auto --memory auto --max-steps 3");
}

/// Replicas recompute the same layers.
#[test]
fn layers_are_chosen_for_all_replicas() {
    let here = Here::new();
    let line = format!("{LARGE} --stages 1 --replicas 2");
    here.succeed(&format!("{line} --recompute never --out never"));
    let run = here.run(&format!("{line} {BETWEEN} --recompute by-layer --out some"));
    check_contains(
        &(run.out + &run.err),
        &["chosen: schedule gpipe, recompute layers "],
    );
    assert!(here.model("some") == here.model("never"));
}

/// Both in one picture: what is predicted for each worker, and what was counted of all.
#[test]
fn bytes_of_a_mini_batch_are_drawn() {
    let here = Here::new();
    let train = "train --layers 3 --filters 4 --batch-size 48 --max-steps 4 --epochs 1";
    here.succeed(&format!("{train} --measure-memory --out counted"));
    let picture = here.read("counted/memory.svg");
    check_contains(&picture, &["worker 1", "all workers", "measured "]);
    let points = picture.split("points=\"").nth(1).unwrap();
    let points = points.split('"').next().unwrap();
    assert!(points.split(' ').count() > 10, "{points}");
    check_contains(&here.read("counted/report.html"), &["--measure-memory"]);
    here.succeed(&format!("{train} --out predicted"));
    assert!(!here.read("predicted/memory.svg").contains("measured"));
    here.refuse_all(
        &format!("{train} --measure-memory"),
        "
        --schedule pipedream --micro-batches 4 => --measure-memory is not for windows of mini-batches
        --dry-run => cannot be used with
        ",
    );
}

#[test]
fn a_state_elsewhere_changes_no_bit() {
    let here = Here::new();
    let train =
        "train --layers 3 --filters 4 --batch-size 48 --max-steps 4 --epochs 1 --save-every 2";
    let away = "--offload optimizer --offload-to states";
    here.succeed(&format!("{train} --out device"));
    here.succeed(&format!("{train} {away} --out away"));
    assert!(here.model("away") == here.model("device"));
    assert!(
        here.read("away/config.toml")
            .contains("offload = \"optimizer\"")
    );
    // It goes on with states on the device, and begins without them.
    here.succeed(&format!("{train} {away} --max-steps 2 --out resumed"));
    here.succeed("train --resume --out resumed --max-steps 4 --offload none");
    assert!(here.model("resumed") == here.model("device"));

    let needs = |more: &str| {
        let text = here.succeed(&format!("{train} {more} --dry-run"));
        let line = text.lines().find(|line| line.starts_with("worker 0 needs"));
        line.unwrap().to_owned()
    };
    check_contains(&needs(away), &["optimizer 0 B"]); // less than the activations
    assert!(!needs("").contains("optimizer 0 B"));
    let plan = "plan --profile profile.toml --workers 2 --schedules 1f1b --json";
    here.write(
        "profile.toml",
        include_str!("../../../../docs/src/guide/profile.toml"),
    );
    let memory = |more: &str| here.json_of(&format!("{plan} {more}")).to_string();
    assert_ne!(memory(""), memory("--offload optimizer"));

    here.refuse_all(
        train,
        "
        --offload optimizer => offload-to is host, but cpu computes in the memory of the host: name a folder
        --offload optimizer --dry-run => offload-to is host, but cpu computes
        --offload-to states => offload-to has no effect without --offload optimizer
        --offload optimizer --offload-to profile.toml => profile.toml
        --schedule pipedream --offload optimizer --offload-to states => --offload
        ",
    );
}

#[test]
fn wrong_layers_say_what_is_wrong() {
    Here::new().refuse_all(
        "train --layers 3 --filters 4 --recompute",
        "
        0-99 => layers 0-99 are to be recomputed, but the model has 9: its last is 8
        3-1 => layers 3 to 1 are none
        0-3,2-5 => layers 2-5 overlap layers 0-3 or come before them
        0-3, => `` is not a layer or a first and a last layer
        ",
    );
    Here::new().refuse_all(
        "simulate --schedule 1f1b --stages 2 --micro-batches 4",
        "
        --recompute 0-3 --layers 2,1 => layers 0-3 are to be recomputed, but the model has 3
        --recompute 0-3 --layers 1,2,3 => --layers has 3 numbers: give one for all stages, or one for each of 2 stages
        --recompute 0 --layers 0 => --layers is 0
        --layers 2 => without layers in --recompute
        ",
    );
    let here = Here::new();
    here.write(
        "profile.toml",
        std::fs::read(root().join("docs/src/guide/profile.toml")).unwrap(),
    );
    here.refuse_all(
        "plan --workers 2 --recompute",
        "
        by-layer => say how much memory a device has, with --memory
        0-3 --memory 4000000 => a plan chooses layers itself: use by-layer
        ",
    );
}

/// Two stages of four layers of 1 ms forward: with two layers recomputed late, the last two of each stage before the
/// gradient arrives.
#[test]
fn simulations_know_layers() {
    let here = Here::new();
    let line = "simulate --schedule gpipe --stages 1 --micro-batches 2 --forward 4 --backward 4 --weight 4 \
                --memory 400 --input-memory 40 --layers 4";
    let of = |recompute: &str| here.json_of(&format!("{line} --recompute {recompute}"));
    let number = |recompute: &str, what: &str| of(recompute)[what].as_f64().unwrap();
    // Forward 2 × 4, backward 2 × 8, and 2 × 1 or 2 × 4 again.
    assert_eq!(number("1", "step_time"), 26.0);
    assert_eq!(number("0,1,2,3", "step_time"), 32.0);
    assert_eq!(number("0-3", "step_time"), 32.0);
    // Layers keep 90 each beside the input of 40, and the output of a segment, 40, where another layer needs it.
    let peak = |recompute: &str| of(recompute)["peak_memory"][0].as_f64().unwrap();
    assert_eq!(peak("0-3"), 40.0 + 400.0);
    assert_eq!(peak("0,1,2,3"), 2.0 * 160.0 + 90.0);
    assert_eq!(peak("1"), 2.0 * (40.0 + 3.0 * 90.0 + 40.0) + 90.0);
}
