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
    let said = here.succeed("compare one two --out comparison.html");
    // Stages change no bit.
    check_contains(
        &said,
        &[
            "pipeline.schedule",
            "gpipe",
            "steps: the same in 6 steps",
            "models: the same in 2 checkpoints and at the end",
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
    let said = here.succeed("compare one two");
    let name = newest.file_name().unwrap().to_str().unwrap();
    check_contains(
        &said,
        &[
            &format!("checkpoint {name} is the first that differs: "),
            "1 number of ",
        ],
    );

    here.succeed(&format!("{TRAIN} --seed 1 --out three"));
    let said = here.succeed("compare one three");
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

    // A norm that only one has; then a run that is not over, and one that is not much.
    let steps = here.read("one/steps.jsonl");
    let (first, rest) = steps.split_once('\n').unwrap();
    let norm = first.find("\"gradient_norm\":").unwrap() + "\"gradient_norm\":".len();
    let end = norm + first[norm..].find(',').unwrap();
    let nothing = format!("{}null{}\n{rest}", &first[..norm], &first[end..]);
    here.write("two/steps.jsonl", nothing);
    check_contains(
        &here.succeed("compare one two"),
        &["that differs: gradient norm ", " and –\n"],
    );
    fs::remove_file(here.join("two/model.safetensors")).unwrap();
    fs::remove_file(here.join("two/steps.jsonl")).unwrap();
    fs::remove_dir_all(here.join("two/checkpoints")).unwrap();
    let said = here.succeed("compare one two");
    check_contains(
        &said,
        &[
            "steps: there are none that both have",
            "the same in 0 checkpoints; there are not two",
        ],
    );
    here.succeed("report two");

    here.refuse_all(
        "",
        "
        report nowhere => nowhere is not the folder of a run: name one that train wrote
        report one/config.toml => one/config.toml is not the folder of a run
        report one --out one/config.toml => one/config.toml is not the name of a page
        report => <RUNS>
        compare one => <SECOND>
        compare one nowhere => nowhere is not the folder of a run
        compare one two --out one/steps.jsonl => name a file that ends in .html with --out
        report one --out nowhere/page.html => nowhere
        ",
    );
}
