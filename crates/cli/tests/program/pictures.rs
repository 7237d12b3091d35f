//! Folders of pictures in ImageNet's layout, as a user trains on them.

use std::{fs, path::Path, process::Output};

use image::{Rgb, RgbImage};
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{over, stovepipe};

const CLASSES: [(&str, [u8; 3]); 2] = [("n01440764", [200, 60, 30]), ("n02102040", [30, 80, 210])];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A picture of one colour, darker or lighter from row to row.
fn picture(colour: [u8; 3], number: u32) -> RgbImage {
    let shade =
        |value: u8, x: u32, y: u32| value.saturating_add(((x * 3 + y + 7 * number) % 40) as u8);
    RgbImage::from_fn(320, 240, |x, y| Rgb(colour.map(|value| shade(value, x, y))))
}

/// `imagenet/train/<wnid>/*.JPEG`, and a flat `imagenet/val` with a file of labels.
fn tree() -> TempDir {
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("imagenet");
    let val = root.join("val");
    fs::create_dir_all(&val).unwrap();
    let mut labels = String::new();
    for (class, (wnid, colour)) in CLASSES.into_iter().enumerate() {
        let folder = root.join("train").join(wnid);
        fs::create_dir_all(&folder).unwrap();
        let save = |path: &Path, number| {
            let format = image::ImageFormat::Jpeg;
            picture(colour, number)
                .save_with_format(path, format)
                .unwrap();
        };
        for number in 0..8 {
            save(&folder.join(format!("{wnid}_{number}.JPEG")), number);
        }
        for number in 0..3 {
            let name = format!(
                "ILSVRC2012_val_0000000{}.JPEG",
                3 * class as u32 + number + 1
            );
            save(&val.join(&name), 20 + number);
            labels += &format!("{name} {wnid}\n");
        }
    }
    fs::write(root.join("val.txt"), labels).unwrap();
    directory
}

fn train(directory: &Path, out: &str, more: &[&str]) -> Output {
    let arguments = [
        "train",
        "--data",
        "imagenet",
        "--data-dir",
        "imagenet",
        "--layers",
        "3",
        "--filters",
        "8",
        "--batch-size",
        "4",
        "--micro-batches",
        "2",
        "--epochs",
        "2",
        "--out",
        out,
    ];
    stovepipe(&over(&arguments, more), directory)
}

fn summary(directory: &Path, out: &str) -> Value {
    let summary = fs::read(directory.join(out).join("summary.json")).unwrap();
    serde_json::from_slice(&summary).unwrap()
}

/// 224×224, every augmentation, an auxiliary head, averages: all that the recipe for ImageNet has, for a few steps.
#[test]
fn a_tree_in_imagenets_layout_trains_end_to_end() {
    let directory = tree();
    let directory = directory.path();
    let more = [
        "--auxiliary",
        "true",
        "--drop-path",
        "0.3",
        "--optimizer",
        "rmsprop",
        "--epsilon",
        "1",
        "--lr",
        "0.05",
        "--ema",
        "0.9",
        "--mixup",
        "0.2",
        "--color-jitter",
        "0.4",
        "--rand-augment",
        "2",
        "--cutout",
        "32",
        "--interpolation",
        "bicubic",
    ];
    let output = train(directory, "run", &more);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary = summary(directory, "run");
    let test = &summary["test"];
    assert!(test["loss"].as_f64().unwrap().is_finite());
    let classes = fs::read_to_string(directory.join("run/classes.txt")).unwrap();
    assert_eq!(classes, "n01440764\nn02102040\n");

    // The saved model, in another number of stages: what it was, to the last bit.
    let eval = ["eval", "run", "--stages", "1", "--json"];
    for (arguments, expected) in [
        (&eval[..], test),
        (&[&eval[..], &["--averaged"]].concat(), &summary["averaged"]),
    ] {
        let output = stovepipe(arguments, directory);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let evaluated: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(&evaluated["test"], expected);
    }
    assert_ne!(test, &summary["averaged"]);

    let file = "imagenet/val/ILSVRC2012_val_00000001.JPEG";
    let output = stovepipe(&["eval", "run", "--predict", file], directory);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        said.starts_with(&format!("{file}: n0")) && said.matches(" %").count() == 2,
        "{said}"
    );
}

#[test]
fn small_images_are_learned_by_a_vision_transformer() {
    let directory = tree();
    let directory = directory.path();
    let more = [
        "--model",
        "vit",
        "--image-size",
        "32",
        "--layers",
        "2",
        "--width",
        "32",
        "--heads",
        "2",
        "--patch",
        "8",
        "--epochs",
        "8",
    ];
    // AmoebaNet's filters are none of its settings.
    let refused = train(directory, "run", &more);
    assert!(
        text(&refused.stderr).contains("filters is for amoebanet-d and amoebanet-b, not for vit")
    );
    let arguments = [
        "train",
        "--data",
        "imagenet",
        "--data-dir",
        "imagenet",
        "--batch-size",
        "8",
        "--out",
        "run",
    ];
    let output = stovepipe(&[&arguments[..], &more].concat(), directory);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let accuracy = summary(directory, "run")["test"]["accuracy"]
        .as_f64()
        .unwrap();
    assert!(accuracy > 0.8, "{accuracy}");
}

#[test]
fn damaged_files_are_named_and_a_few_are_skipped() {
    let directory = tree();
    let directory = directory.path();
    fs::write(
        directory.join("imagenet/train/n01440764/bad.JPEG"),
        b"no picture",
    )
    .unwrap();
    let small = ["--image-size", "64", "--epochs", "1"];
    let output = train(directory, "run", &small);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains(
            "skipped, 1 of at most 10: imagenet/train/n01440764/bad.JPEG: is not an image"
        ),
        "{stderr}"
    );
    assert!(stderr.contains("1 file was skipped in all"), "{stderr}");
    let output = train(
        directory,
        "strict",
        &[&small[..], &["--skip", "0"]].concat(),
    );
    let stderr = text(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("bad.JPEG"),
        "{stderr}"
    );
    assert!(!directory.join("strict").exists());
}

/// Of training and test images together no more than `--skip` may be damaged; each is told of once.
#[test]
fn damaged_files_count_once_wherever_they_are() {
    let directory = tree();
    let directory = directory.path();
    for file in [
        "train/n01440764/bad.JPEG",
        "train/n02102040/worse.JPEG",
        "val/ILSVRC2012_val_00000002.JPEG",
    ] {
        fs::write(directory.join("imagenet").join(file), b"no picture").unwrap();
    }
    let small = ["--image-size", "64", "--epochs", "2"];
    let skipping = |out: &str, skip| {
        let output = train(directory, out, &[&small[..], &["--skip", skip]].concat());
        (output.status.success(), text(&output.stderr))
    };
    let (well, stderr) = skipping("run", "3");
    assert!(well, "{stderr}");
    for file in ["bad.JPEG", "worse.JPEG", "val_00000002.JPEG"] {
        assert_eq!(stderr.matches(file).count(), 1, "{stderr}");
    }
    assert!(stderr.contains("3 files were skipped in all"), "{stderr}");
    let (well, stderr) = skipping("strict", "2");
    assert!(
        !well && stderr.contains("more than 2 files cannot be loaded"),
        "{stderr}"
    );
}

/// What is held out of class folders does not depend on the seed: a model is never tested on what it was trained on.
#[test]
fn class_folders_are_split_the_same_under_any_seed() {
    let directory = tree();
    let directory = directory.path();
    let small = ["--image-size", "64", "--epochs", "1"];
    let folders = [&small[..], &["--data-dir", "imagenet/train"]].concat();
    let output = train(directory, "run", &folders);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let found = "imagenet/train: 2 classes, 12 images to train on, 4 held out to test with (a share of 0.2)";
    assert!(stderr.contains(found), "{stderr}");
    let eval = |more: &[&str]| -> Value {
        let output = stovepipe(&[&["eval", "run", "--json"], more].concat(), directory);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let tested = eval(&[]);
    assert_eq!(tested["test"], summary(directory, "run")["test"]);
    assert_eq!(eval(&["--seed", "3"]), tested);
}

#[test]
fn layouts_under_other_names_are_found_and_told() {
    let directory = tree();
    let directory = directory.path();
    let root = directory.join("imagenet");
    fs::rename(root.join("train"), root.join("Train")).unwrap();
    fs::rename(root.join("val"), root.join("DEV")).unwrap();
    let small = ["--image-size", "64", "--epochs", "1"];
    let output = train(directory, "run", &small);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let found = "imagenet: 2 classes, 16 images to train on, 6 to test with from imagenet/DEV";
    assert!(stderr.contains(found), "{stderr}");
}

#[test]
fn settings_that_would_do_nothing_are_refused() {
    let directory = tree();
    let root = directory.path();
    let fail = |arguments: &[&str], expected: &str| {
        let output = train(root, "run", arguments);
        let stderr = text(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(expected),
            "{arguments:?}: {stderr}"
        );
    };
    fail(
        &["--val-share", "0.3"],
        "val-share has no use: the images to test with have a folder of their own, imagenet/val",
    );
    fail(
        &["--data-dir", "imagenet/train", "--val-labels", "no.txt"],
        "no.txt is not used: there is no folder of validation images",
    );
    // Ranges are looked at wherever the images are.
    for (flag, value, range) in [
        ("image-size", "0", "from 1 to 16384"),
        ("image-size", "16385", "from 1 to 16384"),
        ("resize", "223", "from image-size to 16384"),
        ("crop-area", "0", "above 0 and up to 1"),
        ("crop-area", "7", "above 0 and up to 1"),
        ("color-jitter", "-1", "0 or above"),
        ("color-jitter", "NaN", "0 or above"),
        ("rand-augment", "101", "from 0 to 100"),
        ("magnitude", "31", "from 0 to 30"),
        ("mixup", "NaN", "0 or above"),
        ("mixup", "-0.5", "0 or above"),
        ("val-share", "5", "above 0 and below 1"),
        ("val-share", "-1", "above 0 and below 1"),
        ("loaders", "1025", "from 0 to 1024"),
    ] {
        let named = format!("--{flag}");
        let arguments = ["train", "--data", "imagenet", "--dry-run", &named, value];
        let output = stovepipe(&arguments, root);
        let stderr = text(&output.stderr);
        let expected = format!("error: {flag} is {value}, but must be {range}\n");
        assert!(
            !output.status.success() && stderr == expected,
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn folders_that_hold_no_data_set_are_errors() {
    let directory = tree();
    let root = directory.path();
    let fail = |arguments: &[&str], expected: &str| {
        let output = train(root, "run", arguments);
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            stderr.contains(expected) && !stderr.contains("panicked"),
            "{arguments:?}: {stderr}"
        );
        assert!(!root.join("run").exists());
    };
    fail(&["--data-dir", "nowhere"], "nowhere");
    let output = stovepipe(&["train", "--data", "imagenet"], root);
    assert!(text(&output.stderr).contains("imagenet needs --data-dir"));
    fail(&["--data-dir", "imagenet/val"], "class");
    fail(
        &["--resize", "100"],
        "resize is 100, but must be from image-size to 16384",
    );
    fs::create_dir_all(root.join("one/cat")).unwrap();
    fail(&["--data-dir", "one"], "one");
    picture([1, 2, 3], 0)
        .save(root.join("one/cat/1.png"))
        .unwrap();
    fail(&["--data-dir", "one"], "one class");
    fs::write(
        root.join("imagenet/val.txt"),
        "ILSVRC2012_val_00000001.JPEG n00000000\n",
    )
    .unwrap();
    fail(&[], "n00000000");
    fail(
        &["--crop-padding", "4"],
        "crop-padding is for cifar10 and cifar100, not for imagenet",
    );
}

#[test]
fn other_classes_are_no_test() {
    let directory = tree();
    let root = directory.path();
    let small = ["--image-size", "64", "--epochs", "1"];
    assert!(train(root, "run", &small).status.success());
    fs::rename(
        root.join("imagenet/train/n01440764"),
        root.join("imagenet/train/n00000001"),
    )
    .unwrap();
    let labels = fs::read_to_string(root.join("imagenet/val.txt")).unwrap();
    let labels = labels.replace("n01440764", "n00000001");
    fs::write(root.join("imagenet/val.txt"), labels).unwrap();
    let output = stovepipe(&["eval", "run"], root);
    let stderr = text(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("trained on 2 classes"),
        "{stderr}"
    );
}
