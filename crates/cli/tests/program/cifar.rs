//! Training on CIFAR, as a user does it: on small folders in the official layout.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{
    folder::{record, write_cifar10, write_cifar100},
    running::{
        cases, check_contains, model, refuse, refuse_and_leave_nothing, run, succeed, summary,
    },
};

/// Classes that are told apart by their colour.
const COLOURS: [[u8; 3]; 4] = [[200, 60, 60], [60, 200, 60], [60, 60, 200], [180, 180, 60]];

/// `count` images of all colours in turn, each pixel with noise of its own.
fn colours(file: &str, count: usize, labels: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut noise = file.bytes().map(u32::from).sum::<u32>();
    let mut records = Vec::new();
    for index in 0..count {
        let class = index % COLOURS.len();
        let mut pixels = record(&[], |channel, _, _| COLOURS[class][channel]);
        for pixel in &mut pixels {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *pixel = pixel.wrapping_add((noise >> 27) as u8);
        }
        records.extend(labels(class));
        records.extend(pixels);
    }
    records
}

/// Both data sets: 80 images to train on and 40 to test with.
fn data() -> TempDir {
    let data = tempdir().unwrap();
    write_cifar10(data.path(), |file| {
        let count = if file == "test_batch.bin" { 40 } else { 16 };
        colours(file, count, |class| vec![[0, 3, 6, 9][class]])
    });
    write_cifar100(data.path(), |file| {
        let count = if file == "test.bin" { 40 } else { 80 };
        // Two colours to each superclass.
        colours(file, count, |class| {
            vec![[4, 4, 17, 17][class], [0, 33, 66, 99][class]]
        })
    });
    data
}

/// A small model and few, small batches.
const SMALL: &str = "train --filters 8 --epochs 12 --batch-size 16 --micro-batches 2 --lr 0.01";

fn train(directory: &Path, out: &str, more: &str) -> Value {
    run(&format!("{SMALL} --out {out} {more}"), directory);
    summary(directory, out)
}

/// The classes that the model tells apart: the length of its last bias.
fn classes(directory: &Path, out: &str) -> usize {
    let model = model(directory, out);
    let tensors = safetensors::SafeTensors::deserialize(&model).unwrap();
    let biases = (tensors.names().into_iter()).filter(|name| name.starts_with("layers.8."));
    let shapes = biases.map(|name| tensors.tensor(name).unwrap().shape().to_vec());
    shapes
        .filter(|shape| shape.len() == 1)
        .map(|shape| shape[0])
        .max()
        .unwrap()
}

#[test]
fn cifar10_is_learned_through_the_pipeline() {
    let data = data();
    let directory = tempdir().unwrap();
    let more = format!("--data cifar10 --data-dir {}", data.path().display());
    let summary = train(directory.path(), "run", &more);
    // A quarter would be chance among the colours, a tenth among the classes.
    let accuracy = summary["test"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.7, "{summary}");
    assert_eq!(classes(directory.path(), "run"), 10);
}

#[test]
fn cifar100_is_learned_by_fine_and_by_coarse_labels() {
    let data = data();
    let directory = tempdir().unwrap();
    let directory = directory.path();
    let folder = data.path().join("cifar-100-binary");
    let folder = format!("--data cifar100 --data-dir {}", folder.display());
    let fine = train(directory, "fine", &folder);
    assert!(fine["test"]["accuracy"].as_f64().unwrap() > 0.7, "{fine}");
    assert_eq!(classes(directory, "fine"), 100);
    // Half would be chance.
    let coarse = train(directory, "coarse", &format!("{folder} --labels coarse"));
    let accuracy = coarse["test"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.8, "{coarse}");
    assert_eq!(classes(directory, "coarse"), 20);
}

/// With augmentation: the draws depend on nothing that the pipeline or the program decides.
#[test]
fn a_training_is_the_same_again_and_under_any_number_of_stages() {
    let data = data();
    let directory = tempdir().unwrap();
    let directory = directory.path();
    let folder = data.path().display();
    let train = |out: &str, more: &str| {
        let cifar = format!("--data cifar10 --data-dir {folder} --filters 4 --epochs 2");
        run(
            &format!("train --batch-size 40 --out {out} {cifar} {more}"),
            directory,
        );
        model(directory, out)
    };
    let two = train("two", "--cutout 16");
    assert!(two == train("three", "--cutout 16 --stages 3 --recompute always"));
    // As the run's own configuration says.
    run("train --config two/config.toml --out again", directory);
    assert!(two == model(directory, "again"));
    let config = fs::read_to_string(directory.join("two/config.toml")).unwrap();
    let lines = [
        "crop-padding = 4",
        "flip = true",
        "cutout = 16",
        "data = \"cifar10\"",
    ];
    check_contains(&config, &lines);
    // Each setting does something.
    assert!(two != train("uncut", ""));
    let plain = train("plain", "--crop-padding 0 --flip false");
    assert!(plain != train("flipped", "--crop-padding 0"));
    assert!(plain != train("cropped", "--flip false"));
}

/// Runs `train`, which must fail, say so, and leave nothing behind.
fn check_error(flags: &str, expected: &str) {
    for more in ["--out run", "--dry-run"] {
        refuse_and_leave_nothing(&format!("train {more} {flags}"), expected);
    }
}

#[test]
fn settings_that_do_not_fit_the_data_are_errors() {
    let (folders, cifar) = ("cifar10, cifar100 and imagenet", "cifar10 and cifar100");
    for (setting, value, of) in [
        ("data-dir", "somewhere", folders),
        ("crop-padding", "4", cifar),
        ("flip", "true", folders),
        ("cutout", "0", folders),
    ] {
        let expected = format!("{setting} is for {of}, not for digits");
        check_error(&format!("--{setting} {value}"), &expected);
    }
    check_error("--labels fine", "labels is for cifar100, not for digits");
    let ten = "--data cifar10 --labels coarse";
    check_error(ten, "labels is for cifar100, not for cifar10");
    for (setting, expected) in cases(
        "
        --labels both => fine, coarse
        --flip maybe => invalid value 'maybe'
        --crop-padding -1 => invalid value '-1'
        --crop-padding 33 => crop-padding is 33, but must be from 0 to 32
        --cutout -1 => invalid value '-1'
        --cutout 64 => cutout is 64, but must be from 0 to 32
        ",
    ) {
        check_error(&format!("--data cifar100 {setting}"), expected);
    }
}

#[test]
fn bad_data_are_errors_that_name_the_file() {
    let page = "https://www.cs.toronto.edu/~kriz/cifar.html";
    let check = |name: &str, spoil: &dyn Fn(&Path), expected: &str| {
        let data = data();
        spoil(data.path());
        let folder = data.path().display();
        check_error(&format!("--data {name} --data-dir {folder}"), expected);
    };
    check_error(
        "--data cifar10 --data-dir nowhere",
        "nowhere is missing: unpack cifar-10-binary.tar.gz",
    );
    check(
        "cifar10",
        &|data| fs::remove_dir_all(data.join("cifar-10-batches-bin")).unwrap(),
        page,
    );
    let at = |file: &'static str| move |data: &Path| data.join(file);
    let ten = at("cifar-10-batches-bin/data_batch_3.bin");
    let remove = |data: &Path| fs::remove_file(ten(data)).unwrap();
    check(
        "cifar10",
        &remove,
        "data_batch_3.bin is missing: unpack cifar-10-binary.tar.gz",
    );
    let empty = |data: &Path| fs::write(ten(data), "").unwrap();
    check("cifar10", &empty, "data_batch_3.bin is empty");
    let cut = |data: &Path| fs::write(ten(data), vec![0; 2 * 3073 + 5]).unwrap();
    check(
        "cifar10",
        &cut,
        "data_batch_3.bin is truncated: record 2, counted from 0, has 5 of 3073 bytes",
    );
    let long = |data: &Path| fs::write(ten(data), vec![0; 10_001 * 3073]).unwrap();
    check(
        "cifar10",
        &long,
        "data_batch_3.bin is too long: it must have at most 10000 records",
    );
    let label = |data: &Path| fs::write(ten(data), vec![10; 3073]).unwrap();
    check(
        "cifar10",
        &label,
        "data_batch_3.bin: record 0, counted from 0, has the label 10, but there are 10 classes",
    );
    let names = |data: &Path| {
        fs::write(data.join("cifar-10-batches-bin/batches.meta.txt"), "cat\n").unwrap()
    };
    check(
        "cifar10",
        &names,
        "batches.meta.txt has 1 class names, one per line, but there are 10 classes",
    );
    let fine = |data: &Path| {
        fs::write(
            data.join("cifar-100-binary/test.bin"),
            [vec![19, 100], vec![0; 3072]].concat(),
        )
        .unwrap()
    };
    check(
        "cifar100",
        &fine,
        "test.bin: record 0, counted from 0, has the fine label 100, but there are 100 classes",
    );
}

/// A run needs the folder and a batch that fits; a dry run has neither to check.
#[test]
fn only_a_run_needs_the_data() {
    let data = data();
    let directory = tempdir().unwrap();
    let directory = directory.path();
    let check = |flags: &str, expected: &str| {
        let dry = succeed(&format!("train --dry-run {flags}"), directory);
        refuse(&format!("train --out run {flags}"), directory, expected);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
        dry
    };
    let ten = check("--data cifar10", "cifar10 needs --data-dir");
    let hundred = check("--data cifar100", "cifar100 needs --data-dir");
    assert_ne!(ten, hundred); // in the parameters of their heads
    let folder = data.path().display();
    check(
        &format!("--data cifar10 --data-dir {folder} --batch-size 81"),
        "batch-size is 81, but the training set has 80 samples",
    );
}
