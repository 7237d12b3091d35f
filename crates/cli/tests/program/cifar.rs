//! Training on CIFAR, as a user does it: on small folders in the official layout.

use std::fs;

use crate::{
    folder::{record, write_cifar10, write_cifar100},
    running::{Here, cases, check_contains, refuse_and_leave_nothing},
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
fn data() -> Here {
    let data = Here::new();
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

/// Returns the accuracy.
fn train(here: &Here, out: &str, more: &str) -> f64 {
    here.run(&format!("{SMALL} --out {out} {more}"));
    here.accuracy(out)
}

/// The classes that the model tells apart: the length of its last bias.
fn classes(here: &Here, out: &str) -> usize {
    let model = here.model(out);
    let tensors = safetensors::SafeTensors::deserialize(&model).unwrap();
    let biases = (tensors.names().into_iter()).filter(|name| name.starts_with("layers.8."));
    let shapes = biases.map(|name| tensors.tensor(name).unwrap().shape().to_vec());
    let lengths = shapes
        .filter(|shape| shape.len() == 1)
        .map(|shape| shape[0]);
    lengths.max().unwrap()
}

#[test]
fn cifar10_is_learned_through_the_pipeline() {
    let data = data();
    let here = Here::new();
    let more = format!("--data cifar10 --data-dir {}", data.path().display());
    let accuracy = train(&here, "run", &more);
    // A quarter would be chance among the colours, a tenth among the classes.
    assert!(accuracy > 0.7, "{accuracy}");
    assert_eq!(classes(&here, "run"), 10);
}

#[test]
fn cifar100_is_learned_by_fine_and_by_coarse_labels() {
    let data = data();
    let here = Here::new();
    let folder = data.path().join("cifar-100-binary");
    let folder = format!("--data cifar100 --data-dir {}", folder.display());
    let fine = train(&here, "fine", &folder);
    assert!(fine > 0.7, "{fine}");
    assert_eq!(classes(&here, "fine"), 100);
    // Half would be chance.
    let coarse = train(&here, "coarse", &format!("{folder} --labels coarse"));
    assert!(coarse > 0.8, "{coarse}");
    assert_eq!(classes(&here, "coarse"), 20);
}

/// With augmentation: the draws depend on nothing that the pipeline or the program decides.
#[test]
fn a_training_is_the_same_again_and_under_any_number_of_stages() {
    let data = data();
    let here = Here::new();
    let folder = data.path().display();
    let train = |out: &str, more: &str| {
        let cifar = format!("--data cifar10 --data-dir {folder} --filters 4 --epochs 2");
        here.run(&format!("train --batch-size 40 --out {out} {cifar} {more}"));
        here.model(out)
    };
    let two = train("two", "--cutout 16");
    assert!(two == train("three", "--cutout 16 --stages 3 --recompute always"));
    // As the run's own configuration says.
    here.run("train --config two/config.toml --out again");
    assert!(two == here.model("again"));
    let lines = "crop-padding = 4,flip = true,cutout = 16,data = \"cifar10\"";
    let lines: Vec<_> = lines.split(',').collect();
    check_contains(&here.read("two/config.toml"), &lines);
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
    for (flags, expected) in cases(
        "
        --data-dir somewhere => data-dir is for cifar10, cifar100 and imagenet, not for digits
        --crop-padding 4 => crop-padding is for cifar10 and cifar100, not for digits
        --flip true => flip is for cifar10, cifar100 and imagenet, not for digits
        --cutout 0 => cutout is for cifar10, cifar100 and imagenet, not for digits
        --labels fine => labels is for cifar100, not for digits
        --data cifar10 --labels coarse => labels is for cifar100, not for cifar10
        --data cifar100 --labels both => fine, coarse
        --data cifar100 --flip maybe => invalid value 'maybe'
        --data cifar100 --crop-padding -1 => invalid value '-1'
        --data cifar100 --crop-padding 33 => crop-padding is 33, but must be from 0 to 32
        --data cifar100 --cutout -1 => invalid value '-1'
        --data cifar100 --cutout 64 => cutout is 64, but must be from 0 to 32
        ",
    ) {
        check_error(flags, expected);
    }
}

#[test]
fn bad_data_are_errors_that_name_the_file() {
    check_error(
        "--data cifar10 --data-dir nowhere",
        "nowhere is missing: unpack cifar-10-binary.tar.gz",
    );
    let (ten, hundred) = ("cifar-10-batches-bin", "cifar-100-binary");
    let check = |name: &str, spoil: &dyn Fn(&Here), expected: &str| {
        let data = data();
        spoil(&data);
        let folder = data.path().display();
        check_error(&format!("--data {name} --data-dir {folder}"), expected);
    };
    let page = "https://www.cs.toronto.edu/~kriz/cifar.html";
    let removed = |data: &Here| fs::remove_dir_all(data.join(ten)).unwrap();
    check("cifar10", &removed, page);
    let third = format!("{ten}/data_batch_3.bin");
    let removed = |data: &Here| fs::remove_file(data.join(&third)).unwrap();
    let missing = "data_batch_3.bin is missing: unpack cifar-10-binary.tar.gz";
    check("cifar10", &removed, missing);
    let wrong_class = [vec![19, 100], vec![0; 3072]].concat();
    let [meta, test] = [
        format!("{ten}/batches.meta.txt"),
        format!("{hundred}/test.bin"),
    ];
    let contents = [
        (&third, vec![]),
        (&third, vec![0; 2 * 3073 + 5]),
        (&third, vec![0; 10_001 * 3073]),
        (&third, vec![10; 3073]),
        (&meta, b"cat\n".to_vec()),
        (&test, wrong_class),
    ];
    let expected = cases(
        "
        cifar10 => data_batch_3.bin is empty
        cifar10 => data_batch_3.bin is truncated: record 2, counted from 0, has 5 of 3073 bytes
        cifar10 => data_batch_3.bin is too long: it must have at most 10000 records
        cifar10 => data_batch_3.bin: record 0, counted from 0, has the label 10, but there are 10 classes
        cifar10 => batches.meta.txt must have a class name per line for each of 10 classes, but has 1
        cifar100 => test.bin: record 0, counted from 0, has the fine label 100, but there are 100 classes
        ",
    );
    for ((file, content), (name, expected)) in contents.iter().zip(expected) {
        check(name, &|data| data.write(file, content), expected);
    }
}

/// A run needs the folder and a batch that fits; a dry run has neither to check.
#[test]
fn only_a_run_needs_the_data() {
    let data = data();
    let here = Here::new();
    let check = |flags: &str, expected: &str| {
        let dry = here.succeed(&format!("train --dry-run {flags}"));
        here.refuse(&format!("train --out run {flags}"), expected);
        assert!(here.is_empty());
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
