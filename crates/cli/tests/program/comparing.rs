//! `report` and `compare`.

use std::fs;

use crate::running::{Here, check_contains, check_lacks};

const TRAIN: &str =
    "train --layers 3 --filters 4 --batch-size 48 --max-steps 6 --epochs 1 --save-every 2";

#[test]
fn what_differs_between_two_runs_is_found() {
    let here = Here::new();
    here.succeed(&format!("{TRAIN} --out one"));
    here.succeed(&format!("{TRAIN} --out two --stages 3 --schedule gpipe"));
    let said = here.succeed("compare one two");
    // Stages change no bit.
    check_contains(
        &said,
        &[
            "pipeline.schedule",
            "gpipe",
            "steps: none differs that both have",
            "models: the same in ",
        ],
    );
    check_lacks(&said, &["training.lr"]);
    assert!(here.read("comparison.html").contains("<h1>2 runs</h1>"));

    // One bit of one weight, in the newest checkpoint and at the end.
    let newest = fs::read_dir(here.join("two/checkpoints")).unwrap();
    let newest = newest.map(|found| found.unwrap().path()).max().unwrap();
    for path in [
        newest.join("model.safetensors"),
        here.join("two/model.safetensors"),
    ] {
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let said = here.succeed("compare one two --out bit.html");
    let name = newest.file_name().unwrap().to_str().unwrap();
    check_contains(
        &said,
        &[
            &format!("checkpoint {name} is the first that differs: "),
            "1 number of ",
        ],
    );

    here.succeed(&format!("{TRAIN} --seed 1 --out three"));
    let said = here.succeed("compare one three --out seeds.html");
    check_contains(
        &said,
        &[
            "training.seed",
            "step 1, in epoch 1, is the first that differs: loss ",
        ],
    );
    let table = here.succeed("report one two three --out three.html");
    assert_eq!(table, "");
    let page = here.read("three.html");
    check_contains(
        &page,
        &["<h1>3 runs</h1>", "training.seed", "#by-1:checked"],
    );
    check_lacks(&page, &["<script"]);

    let before = here.read("one/report.html");
    fs::remove_file(here.join("one/report.html")).unwrap();
    here.succeed("report one");
    assert_eq!(here.read("one/report.html"), before);

    here.refuse_all(
        "",
        "
        report nowhere => there is no run nowhere
        report => <RUNS>
        compare one => <SECOND>
        compare one nowhere => there is no run nowhere
        report one --out nowhere/page.html => nowhere
        ",
    );
}
